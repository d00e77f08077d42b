"""Sinks and delivery: nothing is lost while a receiver fails, against a real HTTP server and a real mosquitto."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from keepad.errors import KeepADError
from keepad.watch.delivery import Delivery
from keepad.watch.journal import Event, Journal
from keepad.watch.sinks import DeliveryError, JsonlSink, MqttSink, WebhookSink, sink_of
from receivers import Broker, Receiver, lines, wait_for


def deliver(journal: Journal, sink: Any, said: list[str]) -> Delivery:
    return Delivery(journal, [sink], said.append, longest_pause=0.05)


def test_a_webhook_that_fails_for_a_while_gets_everything_in_order(tmp_path: Path, receiver: Receiver) -> None:
    receiver.codes = [503, 500, 429, 302]
    sink, said = WebhookSink(receiver.url), list[str]()
    journal = Journal(tmp_path / "j.sqlite", [sink.name])
    journal.record([Event({"n": number}) for number in range(7)])
    delivery = deliver(journal, sink, said)
    wait_for(lambda: len(receiver.taken) == 7)
    journal.record([Event({"n": 7})])
    delivery.wake()
    wait_for(lambda: len(receiver.taken) == 8)
    assert delivery.finish(1.0) == 0
    assert [message["n"] for message in receiver.taken] == list(range(8))
    assert len(said) == 2
    assert "503" in said[0]
    assert "is back" in said[1]
    assert "secret" not in "".join(said)


def test_a_message_that_is_refused_is_put_aside_and_tried_at_the_next_start(tmp_path: Path, receiver: Receiver) -> None:
    receiver.codes = [422, 422, 422]
    sink, said = WebhookSink(receiver.url), list[str]()
    journal = Journal(tmp_path / "j.sqlite", [sink.name])
    journal.record([Event({"n": 0}), Event({"n": 1})])
    delivery = deliver(journal, sink, said)
    wait_for(lambda: len(receiver.taken) == 1)
    assert delivery.finish(1.0) == 1
    assert any("put aside" in line for line in said)
    delivery = deliver(journal, sink, said)
    wait_for(lambda: len(receiver.taken) == 2)
    assert delivery.finish(1.0) == 0
    assert [message["n"] for message in receiver.taken] == [1, 0]


def test_what_could_not_be_delivered_waits_for_the_next_start(tmp_path: Path) -> None:
    receiver = Receiver()
    receiver.close()  # nobody listens
    sink, said = WebhookSink(receiver.url), list[str]()
    journal = Journal(tmp_path / "j.sqlite", [sink.name])
    journal.record([Event({"n": 0})])
    delivery = deliver(journal, sink, said)
    wait_for(lambda: bool(said))
    assert delivery.finish(0.1) == 1
    assert journal.waiting(sink.name) != []


def test_a_file_gets_each_message_once_whatever_the_journal_remembers(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    message: dict[str, Any] = {"id": "a-1", "n": 1}
    sink = JsonlSink(path)
    sink.deliver(message)
    sink.deliver(message)
    sink.close()
    with path.open("a") as file:
        file.write('{"id": "a-2", "n"')  # killed while writing
    sink = JsonlSink(path)
    sink.deliver(message)
    sink.deliver({"id": "a-2", "n": 2})
    sink.deliver({"id": "b-1", "n": 3})  # a new journal counts from 1
    sink.close()
    assert [line["n"] for line in lines(path)] == [1, 2, 3]


def test_a_file_that_cannot_be_written_is_a_delivery_error(tmp_path: Path) -> None:
    with pytest.raises(DeliveryError):
        JsonlSink(tmp_path).deliver({"id": "a-1"})


def test_mqtt_loses_nothing_while_the_broker_is_away(tmp_path: Path, broker: Broker) -> None:
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    got, subscribed = list[dict[str, Any]](), threading.Event()
    client = Client(CallbackAPIVersion.VERSION2, client_id="reader", clean_session=False)

    def subscribe(*_: Any) -> None:
        client.subscribe("line/3", qos=1)

    client.on_connect = subscribe
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _, __, message: got.append(json.loads(message.payload))
    client.reconnect_delay_set(0.05, 0.1)  # type: ignore[arg-type]
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    assert subscribed.wait(10)
    sink, said = MqttSink(f"mqtt://127.0.0.1:{broker.port}/line/3"), list[str]()
    journal = Journal(tmp_path / "j.sqlite", [sink.name])
    journal.record([Event({"n": number}) for number in range(5)])
    delivery = deliver(journal, sink, said)
    wait_for(lambda: len({message["n"] for message in got}) == 5)
    broker.stop()
    subscribed.clear()
    journal.record([Event({"n": number}) for number in range(5, 9)])
    delivery.wake()
    wait_for(lambda: bool(said))
    broker.start()
    wait_for(lambda: journal.undelivered(sink.name) == 0)
    assert delivery.finish(1.0) == 0
    client.loop_stop()
    client.disconnect()
    # Delivered means that the broker confirmed it; whether the reader was back by then is the reader's affair.
    assert {message["n"] for message in got} >= set(range(5))
    assert "cannot deliver" in said[0]
    assert "is back" in said[-1]


@pytest.mark.parametrize(
    "text",
    [
        *("results.jsonl", "jsonl:", "webhook:ftp://host/", "webhook:http://", "mqtt:host", "mqtt://host"),
        *("mqtt://host/a/#", "mqtt://user:hidden@host:0/topic", "mqtt://user:hidden@host:99999/topic", "kafka://host"),
    ],
)
def test_a_wrong_sink_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(KeepADError) as caught:
        sink_of(text)
    assert str(caught.value).endswith(".")
    assert "hidden" not in str(caught.value)
