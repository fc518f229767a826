"""Pages of runs and sweeps: tables and plots of plain numbers, written as HTML, Markdown, CSV and SVG.

page = run_page(load(Path("runs/latest")))
write_page(Path("runs/latest"), "report", page)   # report.html, report.md, report/*.csv, report/*.svg
"""
