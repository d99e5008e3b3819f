"""Where orders come in."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_shop.models import Order
from django_shop.tasks import send_receipt


@csrf_exempt
@require_POST
def post_order(request: HttpRequest) -> JsonResponse:
    """Take an order; its receipt is enqueued if and when the transaction commits."""
    with transaction.atomic():
        order = Order.objects.create(customer=request.POST["customer"])
        result = send_receipt.enqueue(order.pk)
        if request.POST["customer"] == "nobody":
            raise ValueError("orders need a customer")
    return JsonResponse({"order": order.pk, "task": result.id}, status=202)


def get_receipt(request: HttpRequest, task_id: str) -> JsonResponse:
    """Say how far a receipt is."""
    result = send_receipt.get_result(task_id)
    return JsonResponse({"status": result.status, "attempts": result.attempts})
