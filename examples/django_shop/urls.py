"""Where everything is."""

from __future__ import annotations

from django.urls import path

from django_shop.views import get_receipt, post_order

urlpatterns = [path("orders", post_order), path("receipts/<str:task_id>", get_receipt)]
