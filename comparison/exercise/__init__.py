"""The workbook: predict, measure, compare, explain, in a terminal."""
