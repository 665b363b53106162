"""Chat templates against Transformers, and what the sandbox forbids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from forerun.models import ChatTemplateError, ModelError, load_tokenizer
from forerun.models.chat_template import ChatTemplate
from tests.fixtures.tiny import BOS, EOS, shared_checkpoint, tiny_checkpoint

CONVERSATIONS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": 'Hello <b> & "é"\n'}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  1 + 1?  "},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Why?"},
    ],
]
TEMPLATES = [
    # ChatML with a default system message.
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    # Blocks on their own lines, which are trimmed; a namespace; a slice; trimmed content.
    "{{- bos_token }}\n{%- set state = namespace(system='') %}\n"
    "{%- if messages[0].role == 'system' %}\n    {%- set state.system = messages[0].content %}\n"
    "    {%- set messages = messages[1:] %}\n{%- endif %}\n"
    "{% for message in messages %}\n    {% if message.role == 'user' %}\n"
    "[INST] {{ state.system }} {{ message.content | trim }} [/INST]\n    {% else %}\n"
    "{{ message.content }}{{ eos_token }}\n    {% endif %}\n{% endfor %}",
    # Loop control, a filter of Transformers' own, the tool list that is absent, generation blocks.
    "{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}"
    "{% generation %}{{ message | tojson }}{% endgeneration %}{% endfor %}"
    "{% if tools is not none %}tools{% endif %}{% if documents %}documents{% endif %}",
]


@pytest.fixture(scope="module")
def theirs() -> PreTrainedTokenizerFast:
    file = str(shared_checkpoint() / "tokenizer.json")
    make: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = make(tokenizer_file=file, bos_token=BOS, eos_token=EOS)
    return tokenizer


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_renders_as_transformers(
    theirs: PreTrainedTokenizerFast,
    template: str,
    messages: list[dict[str, str]],
    add_generation_prompt: bool,
) -> None:
    ours = ChatTemplate(template, {"bos_token": BOS, "eos_token": EOS})
    expected = theirs.apply_chat_template(
        messages,
        chat_template=template,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
    )
    assert ours.render(messages, add_generation_prompt=add_generation_prompt) == expected


def test_the_model_s_own_template_encodes_as_in_transformers() -> None:
    path = shared_checkpoint()
    theirs = PreTrainedTokenizerFast.from_pretrained(path)
    for messages in CONVERSATIONS:
        expected = theirs.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        assert load_tokenizer(path).encode_chat(messages) == expected


def test_the_date_is_offered() -> None:
    text = ChatTemplate("{{ strftime_now('%Y') }}", {}).render([])
    assert len(text) == 4 and text.isdigit()


def test_a_refusal_of_the_template_is_reported() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        template.render([])


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ ''|attr('__class__') }}{{ (''|attr('__class__')).mro() }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_what_the_sandbox_forbids_is_an_error(attack: str) -> None:
    template = ChatTemplate(attack, {})
    with pytest.raises(ChatTemplateError):
        template.render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "attack",
    [
        "{{ raise_exception.__globals__ }}",
        "{{ raise_exception.__code__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ ''|attr('__class__') }}",
    ],
)
def test_what_the_sandbox_hides_is_empty(attack: str) -> None:
    assert ChatTemplate(attack, {}).render([{"role": "user", "content": "x"}]) == ""


@pytest.mark.parametrize("source", ["{% if %}", "{{", "{% unheard_of %}"])
def test_an_invalid_template_is_refused_when_loaded(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="not valid"):
        ChatTemplate(source, {})


def settings_of(path: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((path / "tokenizer_config.json").read_text())
    return settings


def test_where_the_template_is_found(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model")
    settings = settings_of(path)
    del settings["chat_template"]
    file = path / "tokenizer_config.json"

    file.write_text(json.dumps(settings))
    tokenizer = load_tokenizer(path)
    assert not tokenizer.has_chat_template
    with pytest.raises(ChatTemplateError, match="no chat template"):
        tokenizer.encode_chat([])

    (path / "chat_template.json").write_text(json.dumps({"chat_template": "legacy"}))
    assert load_tokenizer(path).apply_chat_template([]) == "legacy"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "plain"}]
    file.write_text(json.dumps(settings | {"chat_template": named}))
    assert load_tokenizer(path).apply_chat_template([]) == "plain"
    (path / "chat_template.jinja").write_text("own file {{ eos_token }}")
    assert load_tokenizer(path).apply_chat_template([]) == f"own file {EOS}"


@pytest.mark.parametrize("named", [["x"], [1, None], [[]], [{"name": "default", "template": 3}]])
def test_a_list_that_names_no_templates_is_refused(tmp_path: Path, named: list[Any]) -> None:
    path = tiny_checkpoint(tmp_path / "model")
    settings = settings_of(path) | {"chat_template": named}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="chat_template"):
        load_tokenizer(path)


def test_a_name_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model")
    named = [{"name": [], "template": "t"}, {"name": "default", "template": "plain"}]
    settings = settings_of(path) | {"chat_template": named}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(path).apply_chat_template([]) == "plain"
