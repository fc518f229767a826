"""Write every generated page and picture."""

from docs.generated import FOLDER, PAGES

for name, make in PAGES.items():
    (FOLDER / name).write_text(make())
