import pytest
import torch


class NoSecondDerivative(torch.autograd.Function):
    """Squares; complains like a cuDNN recurrent net when differentiated twice."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(context, gradient):
        return Complaint.apply(2 * context.saved_tensors[0] * gradient)


class Complaint(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise RuntimeError(
            "the derivative for '_cudnn_rnn_backward' is not implemented. Double backwards is not supported "
            "for CuDNN RNNs due to limitations in the CuDNN API."
        )


@pytest.fixture
def square_once():
    """A square that can be differentiated once."""
    return NoSecondDerivative.apply
