"""Write the dashboards' JSON: python -m monitor.dashboards"""

from monitor.dashboards.render import write

for file in write():
    print(file)
