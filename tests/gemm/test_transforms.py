"""``torch.func``: its transforms see no custom operation, and get the composition, with the same values."""

import torch

import tilewright as tw
from support import DEVICE


def test_grad_and_vmap_of_a_product():
    torch.manual_seed(0)
    a = torch.randn(2, 4, 5, dtype=torch.float64, device=DEVICE)
    b = torch.randn(5, 3, dtype=torch.float64, device=DEVICE)

    def loss(x):
        return tw.matmul(x, b, activation="silu", alpha=0.5).square().sum()

    leaf = a[0].clone().requires_grad_()
    torch.nn.functional.silu(0.5 * leaf @ b).square().sum().backward()
    torch.testing.assert_close(torch.func.grad(loss)(a[0]), leaf.grad, rtol=1e-12, atol=1e-12)
    each = torch.func.vmap(lambda x: tw.linear(x, b.t(), activation="relu"))(a)
    torch.testing.assert_close(each, (a @ b).relu(), rtol=1e-12, atol=1e-12)
