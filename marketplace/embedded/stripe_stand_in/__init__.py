"""A stand-in for Stripe, on this machine only, for the demo and the tests. It charges no card.

It knows the calls that ``payments.stripe_gateway`` makes and no others, and does with them what
Stripe does: idempotency keys, manual capture, declines, 3-D Secure, refunds, disputes, connected
accounts, transfers, payouts, and signed webhooks over HTTP. ``/_test/`` makes it fail.
"""
