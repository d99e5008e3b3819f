"""Tasks in Django's own form: nothing here knows of Fairlead."""

from __future__ import annotations

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task

from django_shop.models import Order


@task(queue_name="mail", takes_context=True)
def send_receipt(context, order_id):  # type: ignore[no-untyped-def]
    """Send a receipt for an order, and note that in the database."""
    order = Order.objects.get(pk=order_id)
    order.receipt = f"receipt for {order.customer}, attempt {context.attempt}"
    order.save()
    return order.receipt
