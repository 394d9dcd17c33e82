"""Taking an adapter away: from the SDK to a node and back, and to a small hub of the tests."""

from __future__ import annotations

import base64
import io
import json
import tarfile
import threading
import zipfile
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import cached_property
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import finetender
import pytest
import torch
from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from gguf import GGUFReader
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load, save
from transformers import AutoModelForCausalLM

from marketplace.common import clock
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.errors import Conflict, UserError
from marketplace.common.models import DurableWork
from marketplace.exports.asking import GIVEN_UP_AFTER, ask_export
from marketplace.exports.errands import KEPT_FOR, delete_old_files
from marketplace.exports.hub import PUSH
from marketplace.exports.merged_values import promote
from marketplace.exports.models import Export, ExportForm, ExportStatus, HubPush, PushStatus
from marketplace.exports.prices import compute_price
from marketplace.exports.selectors import name_export_file
from marketplace.fleet.models import Zone
from marketplace.jobs.errands import (
    find_file_limit,
    hand_out_errands,
    sweep_errands,
    take_file,
    take_result,
)
from marketplace.jobs.models import Artifact, ErrandState, NodePlan
from marketplace.jobs.services import dispatch_slots
from marketplace.jobs.tuned_models import TunedModel
from marketplace.payments.models import AccountKind, LedgerAccount
from marketplace.payments.selectors import get_wallet
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.unit.marketplace.api.client import Api
from tests.unit.marketplace.api.web_server import serve
from workers.exporting.__main__ import export
from workers.models import BUNDLED_PREFIX, TINY, find_bundled_path
from workers.node.blob_cache import BlobCache
from workers.node.errands import ErrandRunner
from workers.node.exporter import Exporter
from workers.node.market_client import MarketClient
from workers.protocol.adapter_files import write_adapter_zip
from workers.protocol.errands import EXPORT, ErrandResult
from workers.protocol.job_spec import AdapterKind, AdapterSpec
from workers.protocol.model_shape import BlockPart, load_shape
from workers.protocol.reports import Fault, SliceEnd

pytestmark = pytest.mark.django_db(transaction=True)

BASE = f"{BUNDLED_PREFIX}{TINY}"
PUSHES = get_kinds()[PUSH]


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


@pytest.fixture
def zone():
    made = market.zone()
    shape = json.loads((find_bundled_path(BASE) / "shape.json").read_text())
    Zone.objects.filter(pk=made.pk).update(base_model_source=BASE, model_shape=shape)
    made.refresh_from_db()
    return made


@pytest.fixture
def node(zone):
    made, reply = build.joined(zone, now=clock.now())
    type(made).objects.filter(pk=made.pk).update(ask_micros=2_000)
    made.refresh_from_db()
    made.api_token = reply.api_token
    return made


@pytest.fixture
def job(owner, zone, node, settings, tmp_path, tuned):
    """A finished job with a real adapter."""
    settings.MEDIA_ROOT = tmp_path / "media"
    adapter = AdapterSpec(rank=4, alpha=16.0, target_modules=("q_proj",))
    made = build.job(zone, (0, node), organisation=owner, adapter=adapter)
    dispatch_slots(now=builders.NOW)
    market.end_slice(made, status=SliceEnd.FINISHED, now=builders.NOW)
    artifact, content = Artifact.objects.get(job=made), tuned.zip.read_bytes()
    artifact.file.save("adapter.zip", ContentFile(content), save=False)
    artifact.bytes, artifact.sha256 = len(content), sha256(content).hexdigest()
    artifact.save()
    # Its lease is off the node's plan.
    dispatch_slots(now=clock.now())
    made.refresh_from_db()
    return made


@dataclass
class Tuned:
    """A real adapter of the bundled base, and what nodes make of it."""

    model: PeftModel
    zip: Path

    @cached_property
    def gguf(self) -> bytes:
        return self.export(ExportForm.GGUF_F16)

    def export(self, form: str, *, adapter: Path | None = None) -> bytes:
        out = self.zip.with_suffix(f".{form}")
        base = find_bundled_path(BASE)
        export(base=base, adapter=adapter or self.zip, form=form, out=out)
        return out.read_bytes()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    return tune(tmp_path_factory.mktemp("tuned"), seed=3)


def tune(folder: Path, *, seed: int) -> Tuned:
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(find_bundled_path(BASE))
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj"]))
    for name, values in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(values, std=0.05)
    model.save_pretrained(folder)
    path = folder / "adapter.zip"
    config = (folder / "adapter_config.json").read_bytes()
    with path.open("wb") as file:
        weights = (folder / "adapter_model.safetensors").read_bytes()
        write_adapter_zip(file, texts={"adapter_config.json": config}, weights=[weights])
    return Tuned(model, path)


def ask(job, owner, *, form=ExportForm.GGUF_F16, now=None, **more):
    person = builders.owner_of(owner)
    now = now or clock.now()
    return ask_export(organisation=owner, asked_by=person, job=job, form=form, now=now, **more)


def available(owner):
    return get_wallet(organisation=owner).available_micros


def test_merged_weights_come_from_a_node_and_compute_the_same(
    owner, job, node, zone, tmp_path, monkeypatch, tuned
):
    before, price = available(owner), compute_price(zone, ExportForm.MERGED)
    _, secret = builders.api_key(owner)
    with serve() as url, finetender.Client(url, secret) as client:
        stopping = threading.Event()
        market_client = MarketClient(url, token=node.api_token, stopping=stopping)
        cache = BlobCache(tmp_path, market_client)
        exporter = Exporter(cache=cache, client=market_client, work=tmp_path / "work")
        runner = ErrandRunner(handlers={EXPORT: exporter}, client=market_client)

        def look(_seconds: float) -> None:
            """Instead of waiting: the market's tick, and the node's."""
            hand_out_errands(now=clock.now())
            for value in NodePlan.objects.latest("pk").plan["errands"]:
                runner.take(value)
            runner._pools[EXPORT].submit(lambda: None).result(600)

        # Of the SDK alone: the exporter's own thread sleeps too.
        monkeypatch.setattr("finetender.client.time", SimpleNamespace(sleep=look))
        export = client.export_adapter(job.pk, "merged")
        assert client.export_adapter(job.pk, "merged")["id"] == export["id"]
        found = client.download_export(job.pk, export["id"], tmp_path / export["filename"])
        runner.close()
        stopping.set()
        market_client.close()
    with tarfile.open(found) as archive:
        archive.extractall(tmp_path / "merged", filter="data")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    ids = torch.tensor([[2, 300, 17, 901, 4]])
    with torch.inference_mode():
        assert torch.allclose(merged(ids).logits, tuned.model.eval()(ids).logits, atol=1e-4)
    assert available(owner) == before - price
    assert get_wallet(organisation=owner).held_micros == 0
    earned = LedgerAccount.objects.get(
        organisation=node.provider.organisation, kind=AccountKind.EARNINGS_PENDING
    )
    assert earned.balance_micros == price


def hand_out(export):
    now = clock.now()
    assert hand_out_errands(now=now) == 1
    export.refresh_from_db()
    assert export.status == ExportStatus.ASKED
    return export


def content(data: bytes):
    return ContentFile(data)


def test_an_adapter_loads_beside_the_base_model_that_the_market_gives(
    job, owner, zone, tmp_path, monkeypatch
):
    artifact = TunedModel(job, market.checkpoint(job, step=4)).take_artifact(now=clock.now())
    with artifact.file.open("rb") as file, zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "adapter")
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert f"vllm serve {BASE.removeprefix('bundled:')} --enable-lora --max-lora-rank 8" in card
    assert "--output base.tar && tar xf base.tar" in card
    api = Api(owner)
    answer = api.get(f"/api/zones/{zone.name}/base")

    async def read() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    assert answer.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(async_to_sync(read)())) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    found = AutoPeftModelForCausalLM.from_pretrained("adapter")
    base = AutoModelForCausalLM.from_pretrained(find_bundled_path(BASE))
    ids = torch.tensor([[2, 300, 17, 901, 4]])
    with torch.inference_mode():
        plain = base(ids).logits
        wanted = PeftModel.from_pretrained(base, "adapter").eval()(ids).logits
        assert torch.equal(found.eval()(ids).logits, wanted)
    assert not torch.allclose(plain, wanted, atol=1e-3)
    # Others are on a hub, or their operator's own.
    Zone.objects.filter(pk=zone.pk).update(base_model_source="owner/model")
    refused = api.get(f"/api/zones/{zone.name}/base")
    assert (refused.status_code, refused.json()["code"]) == (404, "published_base")


def test_a_checkpoint_is_exported_beside_the_finished_adapter(job, owner, node, tuned, tmp_path):
    checkpoint = market.checkpoint(job, step=4)
    export = hand_out(ask(job, owner, checkpoint=checkpoint))
    assert ask(job, owner, checkpoint=checkpoint) == export
    assert ask(job, owner).artifact == Artifact.objects.get(job=job)
    assert export.artifact.checkpoint == checkpoint
    assert name_export_file(export) == f"{job.pk}-step-4-f16.gguf"
    with export.artifact.file.open("rb") as file:
        (tmp_path / "adapter.zip").write_bytes(file.read())
    made = tuned.export(ExportForm.GGUF_F16, adapter=tmp_path / "adapter.zip")
    take_file(node=node, token=export.token, content=content(made), now=clock.now())
    export.refresh_from_db()
    assert export.status == ExportStatus.READY


def test_a_file_is_paid_once_however_often_it_is_sent(job, owner, node, tuned):
    before = available(owner)
    export = hand_out(ask(job, owner))
    stranger = market.node(job.zone)
    with pytest.raises(UserError, match="was not asked"):
        take_file(node=stranger, token=export.token, content=content(tuned.gguf), now=clock.now())
    for _ in range(2):
        take_file(node=node, token=export.token, content=content(tuned.gguf), now=clock.now())
    assert available(owner) == before - export.price_micros
    # Another one, in the last place of one value, changes nothing any more.
    other = bytearray(tuned.gguf)
    other[-64] ^= 1
    with pytest.raises(UserError, match="This is no export"):
        take_file(node=node, token=export.token, content=content(other), now=clock.now())
    export.refresh_from_db()
    assert export.status == ExportStatus.READY
    asked = {"node": node, "token": export.token, "now": clock.now() + timedelta(days=1)}
    assert find_file_limit(**asked) == settings.EXPORT_BYTES_MAX
    Export.objects.update(state=ErrandState.ASKED)
    assert find_file_limit(**asked) == 0
    with pytest.raises(Conflict, match="is over"):
        take_file(content=content(tuned.gguf), **asked)
    Export.objects.update(state=ErrandState.DONE)
    with export.file.open("rb") as file:
        assert file.read() == tuned.gguf
    delete_old_files(now=clock.now() + KEPT_FOR)
    export.refresh_from_db()
    assert (export.status, export.file.name) == (ExportStatus.EXPIRED, "")
    assert ask(job, owner).pk != export.pk


@pytest.fixture(params=["version", "zip", "cut", "base", "one tensor"])
def wrong(request, tuned, tmp_path):
    """What no node should be paid for, though the last two are whole files of the base's shape."""
    whole = bytearray(tuned.gguf)
    if request.param == "base":
        return tune(tmp_path, seed=4).gguf
    if request.param == "one tensor":
        tensor = next(t for t in GGUFReader(tuned.zip.with_suffix(".gguf-f16")).tensors[7:])
        whole[tensor.data_offset : tensor.data_offset + tensor.n_bytes] = bytes(tensor.n_bytes)
        return bytes(whole)
    return {"version": b"GGUF\x02\0\0\0", "zip": b"PK", "cut": bytes(whole[:-32])}[request.param]


def test_a_file_of_another_form_or_of_other_values_is_not_paid(job, owner, node, wrong):
    before = available(owner)
    export = hand_out(ask(job, owner))
    with pytest.raises(UserError, match="This is no export: ") as refused:
        take_file(node=node, token=export.token, content=content(wrong), now=clock.now())
    assert refused.value.code == "invalid_export"
    export.refresh_from_db()
    assert (export.status, export.file.name, export.paid_micros) == (ExportStatus.WAITING, "", 0)
    assert not default_storage.exists("errands")
    assert available(owner) == before - export.price_micros
    assert get_wallet(organisation=owner).held_micros == export.price_micros
    with pytest.raises(Conflict, match="is over"):
        take_file(node=node, token=export.token, content=content(wrong), now=clock.now())
    second, _ = build.joined(job.zone, name="gpu-2", now=clock.now())
    assert hand_out(export).node == second


@pytest.mark.parametrize(
    ("stored", "named", "wanted"),
    [
        ("F16", {}, "F16"),
        ("BF16", {}, "F32"),
        ("BF16", {"torch_dtype": "bfloat16"}, "BF16"),
        ("BF16", {"dtype": "float32"}, "F32"),
        ("F32", {"dtype": "bfloat16"}, "F32"),
    ],
)
def test_merged_values_have_the_type_that_a_node_writes(stored, named, wanted):
    assert promote(stored, named) == wanted


def test_merged_values_of_another_type_are_refused(job, owner, node, tuned):
    out, whole = io.BytesIO(), tuned.export(ExportForm.MERGED)
    with tarfile.open(fileobj=io.BytesIO(whole)) as old, tarfile.open(fileobj=out, mode="w") as new:
        for entry in old:
            body = old.extractfile(entry).read()
            if entry.name.endswith(".safetensors"):
                body = save({name: row.astype("f8") for name, row in load(body).items()})
            entry.size = len(body)
            new.addfile(entry, io.BytesIO(body))
    export = hand_out(ask(job, owner, form=ExportForm.MERGED))
    with pytest.raises(UserError, match="is of type F64, not F32"):
        take_file(node=node, token=export.token, content=content(out.getvalue()), now=clock.now())


def rewrite_merged(whole: bytes) -> bytes:
    """A node's tar with other texts beside the same values."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(whole)) as old, tarfile.open(fileobj=out, mode="w") as new:
        for entry in old:
            body = old.extractfile(entry).read()
            if entry.name.endswith(".safetensors"):
                body = save(load(body), {"format": "pt", "note": "evil"})
            else:
                body = b'{"chat_template": "evil", "auto_map": {"AutoModel": "evil.Evil"}}'
            entry.size = len(body)
            new.addfile(entry, io.BytesIO(body))
        evil = tarfile.TarInfo("vocab.txt")
        evil.size = 4
        new.addfile(evil, io.BytesIO(b"evil"))
    return out.getvalue()


@pytest.mark.parametrize("form", [ExportForm.MERGED, ExportForm.GGUF_F16, ExportForm.GGUF_Q8_0])
def test_a_node_writes_no_text_of_an_export(job, owner, node, tuned, form):
    honest = tuned.export(form)
    if form == ExportForm.MERGED:
        sent = rewrite_merged(honest)
    else:
        # a token, the chat template and what lies between two tensors
        sent = honest.replace(b"<|assistant|>", b"<|evil_____|>")
    assert b"evil" in sent
    export = hand_out(ask(job, owner, form=form))
    take_file(node=node, token=export.token, content=content(sent), now=clock.now())
    export.refresh_from_db()
    assert export.status == ExportStatus.READY
    with export.file.open("rb") as file:
        stored = file.read()
    assert (len(stored), sha256(stored).hexdigest()) == (export.bytes, export.sha256)
    assert b"evil" not in stored
    if form != ExportForm.MERGED:
        assert stored == honest
        return
    with tarfile.open(fileobj=io.BytesIO(stored)) as archive:
        names = archive.getnames()
        weights = load(archive.extractfile("model.safetensors").read())
        config = json.loads(archive.extractfile("config.json").read())
    assert names == [
        *("chat_template.jinja", "config.json", "generation_config.json"),
        *("tokenizer.json", "tokenizer_config.json", "model.safetensors"),
    ]
    assert config == json.loads((find_bundled_path(BASE) / "config.json").read_text())
    with tarfile.open(fileobj=io.BytesIO(honest)) as archive:
        made = load(archive.extractfile("model.safetensors").read())
    assert weights.keys() == made.keys()
    assert all((weights[name] == values).all() for name, values in made.items())


def refuse(node, export, reason, fault):
    result = ErrandResult(reason=reason, fault=fault)
    take_result(node=node, token=export.token, result=result, now=clock.now())


def test_what_cannot_be_made_costs_nothing_and_says_why(job, owner, node):
    before = available(owner)
    export = ask(job, owner)
    for _ in range(3):
        hand_out(export)
        for _ in range(2):
            refuse(node, export, "This is a cat.", Fault.USER)
    export.refresh_from_db()
    assert (export.status, export.reason) == (ExportStatus.FAILED, "This is a cat.")
    assert available(owner) == before


def test_another_try_follows_a_node_that_fails_or_falls_silent_and_three_are_all(job, owner, node):
    before = available(owner)
    export = ask(job, owner)
    for attempt in range(1, 4):
        hand_out(export)
        assert export.attempts == attempt
        if attempt == 2:
            sweep_errands(now=export.expires_at)
        else:
            refuse(node, export, "Disk full.", Fault.SYSTEM)
    export.refresh_from_db()
    assert export.status == ExportStatus.FAILED
    assert available(owner) == before
    waiting = ask(job, owner)
    hand_out_errands(now=clock.now() + GIVEN_UP_AFTER + timedelta(seconds=1))
    waiting.refresh_from_db()
    assert waiting.status == ExportStatus.FAILED
    assert available(owner) == before


def test_adapters_that_have_no_other_form_are_refused_before_any_money(job, owner):
    lora = job.terms
    job.terms = replace(lora, adapter=AdapterSpec(AdapterKind.SOFT_PROMPT, virtual_tokens=8))
    with pytest.raises(UserError) as refused:
        ask(job, owner)
    assert refused.value.code == "unsupported_export"
    experts = BlockPart("mlp.experts.down_proj", 8, 8, (0,), experts=4, chosen=2)
    shape = replace(load_shape(job.zone.model_shape), experts=(experts,))
    job.zone.model_shape = asdict(shape)
    job.terms = replace(lora, adapter=AdapterSpec(target_modules=("experts.down_proj",)))
    with pytest.raises(UserError, match="does not sit beside the experts of a mixture") as refused:
        ask(job, owner)
    assert refused.value.code == "unsupported_export"
    job.terms = lora
    Artifact.objects.filter(job=job).delete()
    with pytest.raises(UserError) as refused:
        ask(job, owner)
    assert refused.value.code == "no_adapter"
    assert not Export.objects.exists()


class SmallHub(BaseHTTPRequestHandler):
    """What the hub's own client calls when it makes a repository and commits small files."""

    files: dict[str, bytes]
    calls: list[tuple[str, str | None]]
    status: int

    def do_POST(self):
        size = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while length := int(self.rfile.readline(), 16):
                body += self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(size)
        self.calls.append((self.path, self.headers["Authorization"]))
        if self.status != 200:
            return self._answer({"error": "no"}, self.status)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            assert asked["visibility"] == "private"
            name = f"{asked['organization']}/{asked['name']}"
            return self._answer({"url": f"http://{self.headers['Host']}/{name}", "name": name})
        if "/preupload/" in self.path:
            named = [one["path"] for one in json.loads(body)["files"]]
            found = [
                {"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in named
            ]
            return self._answer({"files": found})
        for line in body.splitlines():
            value = json.loads(line)
            if value["key"] == "file":
                self.files[value["value"]["path"]] = base64.b64decode(value["value"]["content"])
        url = f"http://{self.headers['Host']}/ada/tone/commit/0"
        return self._answer({"commitUrl": url, "commitOid": "0" * 40, "success": True})

    def do_GET(self):
        value = {"id": "ada/tone", "siblings": [], "sha": "0" * 40}
        self._answer(value, self.status)

    def _answer(self, value, status=200):
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def small_hub(settings):
    handler = type("Hub", (SmallHub,), {"files": {}, "calls": [], "status": 200})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    settings.HUB_URL = f"http://127.0.0.1:{server.server_port}"
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def push(api, job, **changed):
    asked = {"repository": "ada/tone", "token": "hf_secret"} | changed
    return api.post(f"/api/jobs/{job.pk}/pushes", asked)


@pytest.fixture
def api(owner):
    return Api(owner)


def test_an_adapter_is_pushed_under_the_owners_token_which_is_then_forgotten(
    api, job, small_hub, tmp_path
):
    asked = push(api, job)
    assert asked.status_code == 201, asked.json()
    row = HubPush.objects.get()
    assert "hf_secret" not in row.token
    assert "hf_secret" not in asked.content.decode()
    assert run_due_work(PUSHES, clock=clock.now) == 1
    assert run_due_work(PUSHES, clock=clock.now) == 0
    row.refresh_from_db()
    assert (row.status, row.token, row.reason) == (PushStatus.PUSHED, "", "")
    assert set(small_hub.files) >= {"adapter_config.json", "adapter_model.safetensors"}
    assert {told for _, told in small_hub.calls} == {"Bearer hf_secret"}
    seen = api.get(asked["Location"]).json()
    assert (seen["status"], seen["private"]) == ("pushed", True)
    assert seen["url"].endswith("/ada/tone")


def test_a_refusal_of_the_hub_is_told_and_a_hub_that_is_down_is_tried_again(
    api, job, small_hub, settings, tmp_path
):
    small_hub.status = 403
    push(api, job)
    assert run_due_work(PUSHES, clock=clock.now) == 1
    refused = HubPush.objects.get()
    assert (refused.status, refused.token) == (PushStatus.FAILED, "")
    assert refused.reason.startswith("The hub answered 403")
    push(api, job)
    settings.HUB_URL = "http://127.0.0.1:9"
    for attempt in range(1, 6):
        row = HubPush.objects.get(status=PushStatus.WAITING)
        work = DurableWork.objects.get(key=row.pk)
        assert work.attempts == attempt - 1
        assert run_due_work(PUSHES, clock=lambda at=work.due_at: at - timedelta(seconds=1)) == 0
        assert run_due_work(PUSHES, clock=lambda at=work.due_at: at) == 1
        row.refresh_from_db()
    assert not DurableWork.objects.filter(kind=PUSH).exists()
    assert (row.status, row.token) == (PushStatus.FAILED, "")
    assert "could not be reached" in row.reason


@pytest.mark.parametrize(
    ("changed", "code", "param"),
    [
        ({"repository": "tone"}, "invalid_repository", "repository"),
        ({"repository": "../etc/passwd"}, "invalid_repository", "repository"),
        ({"token": "a\nb"}, "invalid_token", "token"),
        ({"export_id": "exp_x"}, "unknown_export", None),
    ],
)
def test_a_push_that_cannot_be_is_refused_at_once(api, job, changed, code, param):
    refused = push(api, job, **changed)
    assert (refused.json()["code"], refused.json().get("param")) == (code, param)
    assert not HubPush.objects.exists()


def test_an_export_is_not_there_before_it_is_made(api, job, owner):
    asked = api.post(f"/api/jobs/{job.pk}/exports", body={"form": "gguf-q8_0"})
    assert asked.status_code == 201
    content = api.get(f"{asked['Location']}/content")
    assert (content.status_code, content.json()["code"]) == (409, "export_not_ready")
    listed = api.get(f"/api/jobs/{job.pk}/exports").json()
    assert [one["id"] for one in listed["data"]] == [asked.json()["id"]]
    assert listed["prices"]["gguf-q8_0"] == asked.json()["price"]
    assert push(api, job, export_id=asked.json()["id"]).json()["code"] == "export_not_ready"
