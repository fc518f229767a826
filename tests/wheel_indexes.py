"""Addresses of package indexes that hold a secret: no command may repeat it."""

SECRETS = [
    "https://user:s3cret@mirror.example/simple",
    "http://s3cret@mirror.example/simple",
    "https://:s3cret@mirror.example",
    "https://user:pa/s3cret@mirror.example/simple",
    "https://mirror.example/simple?token=s3cret",
    "https://mirror.example/simple#s3cret",
    "ftp://user:s3cret@mirror.example",
    "user:s3cret@mirror.example",
]
