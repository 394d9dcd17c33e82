"""What outsiders and members tried on a running house, and the tests that try it again.

``make test-attacks`` runs them; each is in ``make test`` as well, or at night where it is long.
"""

ATTACKS: dict[str, tuple[str, ...]] = {
    "A member, a key, a vendor or a node uses a route or a socket that is not for it": (
        "tests/unit/marketplace/test_route_policy.py",
        "tests/unit/marketplace/accounts/test_api_keys.py",
    ),
    "A stranger asks for what is somebody else's": (
        "tests/unit/marketplace/api/test_strangers.py",
        "tests/unit/marketplace/api/test_links.py",
    ),
    "Somebody guesses passwords, or locks others out": (
        "tests/unit/marketplace/accounts/test_sign_in.py",
        "tests/unit/marketplace/accounts/test_back_office_sign_in.py",
    ),
    "A provider is paid for noise, for another's weights, or for nothing": (
        "tests/properties/test_lying_nodes.py",
        "tests/unit/marketplace/jobs/test_uploads.py",
        "tests/unit/marketplace/auction/test_result_disputes.py",
        "tests/unit/marketplace/express/test_false_scores.py",
        "tests/unit/workers/protocol/test_adapter_check.py",
    ),
    "A machine says that it is faster or larger than its devices are": (
        "tests/unit/marketplace/fleet/test_doubts.py",
    ),
    "Somebody reads the metrics without their token": (
        "tests/unit/marketplace/config/test_entrances.py",
    ),
    "A node's text or code reaches a customer in an adapter or an export": (
        "tests/unit/marketplace/api/test_exports.py",
        "tests/unit/workers/protocol/test_export_check.py",
    ),
    "A market that was broken into serves another package to its nodes": (
        "tests/unit/workers/node/test_update.py",
    ),
    "A body or a stream fills the disk, the memory or the connections": (
        "tests/unit/marketplace/api/internal/test_body_limit.py",
        "tests/unit/marketplace/api/test_full_disk.py",
        "tests/unit/marketplace/api/test_stream_limits.py",
        "tests/unit/marketplace/live/test_consumers.py",
        "tests/properties/test_hostile_requests.py",
    ),
    "A webhook or a vendor's address leads into the house's own network": (
        "tests/unit/marketplace/common/test_outbound.py",
    ),
    "Words of who left stand in some row still, or an act leaves no trace": (
        "tests/unit/marketplace/accounts/test_deletion.py",
        "tests/unit/marketplace/accounts/test_audit.py",
    ),
    "A new or frozen organisation takes more than it may": (
        "tests/unit/marketplace/accounts/test_oversight.py",
    ),
    "One secret that cannot be read stops everybody's work": (
        "tests/unit/marketplace/common/test_encryption.py",
    ),
    "A log is cut, forged or written for one reader, or an honest one is branded": (
        "tests/properties/test_auction_forgery.py",
        "tests/properties/test_auction_forged_logs.py",
        "tests/unit/marketplace/auction/pricing/test_solve.py",
        "tests/unit/scheduler/auction/audit/test_solve_again.py",
    ),
    "A bid is spent twice, or prices are moved by bids": (
        "tests/unit/marketplace/auction/lane/test_attacks.py",
        "tests/unit/marketplace/express/test_attacks.py",
        "tests/unit/marketplace/payments/test_races.py",
    ),
    "A lane or a database stops at the worst moment": (
        "tests/integration/test_lane_faults.py",
        "tests/integration/test_database_restart.py",
    ),
}
