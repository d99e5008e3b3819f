"""The shop with the testing kit: python django_shop/manage.py test django_shop"""

from __future__ import annotations

from django.test import TransactionTestCase

from django_shop.models import Order
from django_shop.tasks import send_receipt
from fairlead.testing import Kit


class OrderTests(TransactionTestCase):
    """Orders and their receipts."""

    def setUp(self) -> None:
        """Give each test an empty queue in memory."""
        self.kit = Kit(send_receipt.get_backend().queue)
        self.enterContext(self.kit)

    def test_an_order_gets_a_receipt(self) -> None:
        """The task sees what the view has committed."""
        answer = self.client.post("/orders", {"customer": "Ada"})
        self.assertEqual(answer.status_code, 202)
        task = answer.json()["task"]
        self.assertEqual(self.client.get(f"/receipts/{task}").json()["status"], "READY")
        self.assertEqual(self.kit.drain(), 1)
        self.assertEqual(
            self.client.get(f"/receipts/{task}").json(), {"status": "SUCCESSFUL", "attempts": 1}
        )
        self.assertEqual(Order.objects.get().receipt, "receipt for Ada, attempt 1")

    def test_an_order_that_is_rolled_back_gets_none(self) -> None:
        """Nothing is enqueued for what does not exist."""
        with self.assertRaises(ValueError):
            self.client.post("/orders", {"customer": "nobody"})
        self.assertEqual(self.kit.drain(), 0)
        self.kit.not_enqueued("send_receipt")

    def test_a_failed_receipt_is_tried_again(self) -> None:
        """Retries are those of the setting."""
        result = send_receipt.enqueue(404)
        self.kit.elapse("10m", raise_errors=False)
        result.refresh()
        self.assertEqual((result.status, result.attempts), ("FAILED", 3))
        self.assertIn("Order matching query does not exist", result.errors[0].traceback)
