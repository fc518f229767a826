"""One run: from settings to a request, supervised rank by rank, recorded, judged, and written down."""
