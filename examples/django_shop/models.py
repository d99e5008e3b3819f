"""What the shop keeps."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order, and whether its receipt was sent."""

    customer = models.CharField(max_length=100)
    receipt = models.CharField(max_length=200, blank=True)
