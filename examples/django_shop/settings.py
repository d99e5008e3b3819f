"""Settings of the shop; the broker is the one that FAIRLEAD_URL names."""

from __future__ import annotations

from importlib.util import find_spec

SECRET_KEY = "only an example"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
ROOT_URLCONF = "django_shop.urls"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["fairlead.contrib.django", "django_shop"]
if find_spec("django.tasks") is None:  # Django 5.2: pip install django-tasks
    INSTALLED_APPS.append("django_tasks")

TASKS = {
    "default": {
        "BACKEND": "fairlead.contrib.django.FairleadBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"TASK": {"max_retries": 2}},
    }
}
