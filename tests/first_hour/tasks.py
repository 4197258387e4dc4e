"""What a new user tries in the first hour, and the tests that hold each of it.

The list is of 46 tasks that were tried with the README and the documentation alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to try."""

    number: int
    title: str
    tests: tuple[str, ...]  # "folder/file.py::name" below tests/, of a class "folder/file.py::Class::name"
    by_hand: str = ""  # what no program can judge


TASKS = (
    Task(1, "install, and the first answer", (
        "project/test_packaging.py::test_an_installed_wheel_answers_with_its_demo",
        "model/test_demo.py::test_the_demo_answers_as_its_checkpoint_does")),
    Task(2, "what importing costs", (
        "project/test_import.py::test_importing_embedllm_loads_the_standard_library_only",
        "project/test_import.py::test_generating_loads_no_exporter_prints_nothing_and_writes_nothing")),
    Task(3, "the README's Python", ("project/test_docs.py::test_python_examples_run",)),
    Task(4, "embedllm chat: commands, keys, look", (
        "cli/test_chat.py::test_help_lists_every_command",
        "cli/test_chat.py::TestTyped::test_ctrl_c_stops_the_reply_and_the_chat_goes_on",
        "cli/test_chat.py::TestTyped::test_ctrl_c_at_the_prompt_clears_the_line_and_ctrl_d_leaves",
        "cli/test_chat.py::TestTyped::test_ctrl_c_is_not_written_into_the_reply",
        "cli/test_chat.py::TestTyped::test_tab_completes_commands_and_the_next_chat_has_what_was_typed",
        "cli/test_reply_output.py::test_a_terminal_renders_markdown"), by_hand="whether it looks good"),
    Task(5, "three pasted lines in chat", (
        "cli/test_chat.py::TestTyped::test_pasted_lines_are_one_message_and_one_entry_of_the_history",)),
    Task(6, "waiting for a model and for a long prompt", (
        "cli/test_reply_output.py::test_what_takes_long_is_said_at_a_terminal_and_cleared",)),
    Task(7, "/save, /open, /system, /stats, /reset", (
        "cli/test_chat.py::test_a_saved_conversation_goes_on",
        "cli/test_chat.py::test_the_system_message_can_be_set_changed_and_removed",
        "cli/test_chat.py::test_statistics_say_what_was_held_from_earlier",
        "cli/test_chat.py::test_reset_forgets_all_but_the_system_message",
        "cli/test_messages_file.py::test_only_its_owner_can_read_it")),
    Task(8, "asyncio, and cancelling a task", (
        "model/test_model.py::test_asynchronous_equals_synchronous",
        "model/test_model_cancel.py::test_cancelling_a_task_ends_a_running_prefill",
        "generation/test_batch.py::test_tasks_of_an_event_loop_run_together_too",
        "loading/test_load.py::test_a_model_is_closed_at_the_end_of_async_with")),
    Task(9, "cancelling from a thread, KeyboardInterrupt", (
        "model/test_model_cancel.py::test_cancelling_from_another_thread_ends_a_reply",
        "model/test_interrupts.py::test_interrupts_at_any_moment_leave_a_model_that_answers_rightly")),
    Task(10, "JSON schemas and pydantic classes", (
        "sampling/structured/test_structured_replies.py::test_a_pydantic_class_reads_its_reply",
        "sampling/structured/test_structured_replies.py::test_the_demo_model_follows_each_kind")),
    Task(11, "regex, choices and Lark", (
        "sampling/structured/test_llguidance.py::test_a_regex_matches_the_whole_reply",
        "sampling/structured/test_llguidance.py::test_a_lark_grammar_is_followed",
        "cli/test_options.py::test_a_regex_choices_and_a_grammar_are_followed",
        "cli/test_commands.py::test_a_regex_that_cannot_be_followed_is_refused_in_one_readable_line")),
    Task(12, "tools, run_tools, confirm, a tool that fails", (
        "model/test_agent.py::test_a_call_runs_and_the_model_goes_on_with_its_result",
        "model/test_agent.py::test_a_declined_call_does_not_run",
        "model/test_agent.py::test_what_went_wrong_is_told_to_the_model",
        "text/test_function_schema.py::test_a_function_that_cannot_be_a_tool_is_refused_by_name")),
    Task(13, "tools on a model whose template has none", (
        "tools/test_generic_prompt.py::test_no_template_drops_tools_calls_or_results",
        "tools/test_real_tools.py::test_a_call_that_it_must_make_is_made_and_its_result_is_in_the_next_prompt",
        "model/test_agent.py::test_a_template_without_tools_gets_them_in_the_messages_and_the_log_says_so_once")),
    Task(14, "OpenAI's forms of messages", (
        "text/test_plain_content.py::test_a_model_takes_them",
        "text/test_plain_content.py::test_other_parts_are_refused_by_their_type",
        "openai/test_client.py::test_tools_are_called_and_answered_with_messages_of_either_form")),
    Task(15, "llm.chat(messages, temperature=0.5), chat.completions.create", (
        "generation/test_options.py::test_options_by_name_take_the_place_of_fields",
        "generation/test_options.py::test_every_call_takes_them",
        "openai/test_client.py::test_a_reply_is_that_of_chat",
        "openai/test_client.py::test_replies_have_the_shapes_of_the_package_openai")),
    Task(16, "other wrong arguments", (
        "generation/test_options.py::test_wrong_options_say_what_there_is",
        "model/test_model.py::test_a_call_that_makes_no_sense_is_refused_before_anything_runs",
        "tools/test_tool_choice.py::test_a_choice_may_be_openai_s_object")),
    Task(17, "many replies at once, Busy", (
        "generation/test_batch.py::test_a_batch_gives_what_each_prompt_gives_alone",
        "generation/test_queue.py::test_a_full_queue_is_said_at_once_and_who_waits_is_served")),
    Task(18, "the prefix cache across processes", (
        "kv_cache/test_disk_store.py::test_another_process_starts_from_what_the_first_has_computed",)),
    Task(19, "saving and opening a conversation", (
        "model/test_saved_conversation.py::test_a_conversation_goes_on_in_another_model_as_if_it_had_never_stopped",
        "model/test_saved_conversation.py::test_only_its_owner_reads_what_was_said")),
    Task(20, "LoRA adapters", (
        "cli/test_options.py::test_an_adapter_computes_the_replies",
        "package/lora/test_peft.py::test_an_adapter_of_another_model_is_refused")),
    Task(21, "embed and rerank; encoders in chat, bench and tune", (
        "cli/test_embed.py::test_vectors_are_lists_of_numbers_one_a_line",
        "cli/test_embed.py::test_documents_come_best_first",
        "cli/test_embed.py::test_commands_that_need_text_refuse_it",
        "cli/test_embed.py::test_the_demo_is_refused_with_a_model_of_the_right_kind")),
    Task(22, "exporting a checkpoint", (
        "cli/test_commands.py::test_an_export_can_be_run_and_inspected",
        "cli/test_commands.py::test_an_export_ends_with_the_next_line_to_type",
        "model/test_bad_input.py::test_a_damaged_source_is_refused_by_name")),
    Task(23, "exporting with a calibrated method", (
        "export/quantization/test_calibration.py::test_progress_counts_passes_through_layers",
        "export/quantization/test_calibration.py::test_every_stage_is_reported_when_it_begins_and_when_it_ends",
        "export/quantization/test_calibration.py::test_drawing_is_reported_before_a_sequence_is_whole",
        "export/test_limits.py::test_ctrl_c_of_the_command_says_so_and_leaves_nothing")),
    Task(24, "inspect demo", (
        "cli/test_commands.py::test_inspect_shows_every_part",
        "cli/test_commands.py::test_the_demo_names_its_licence",
        "cli/test_commands.py::test_tables_have_no_spaces_at_the_ends_of_lines_for_a_pipe")),
    Task(25, "fit", (
        "loading/test_memory_estimate.py::test_the_command_lists_every_device",
        "loading/test_memory_estimate.py::test_a_checkpoint_is_estimated_as_its_export_and_not_exported")),
    Task(26, "bench demo", (
        "profiling/bench/test_rounds.py::test_everything_at_once_on_two_engines",
        "profiling/bench/test_table.py::test_a_narrow_terminal_gets_the_medians_and_no_folded_cell")),
    Task(27, "tune demo", ("profiling/tuning/test_tune.py::test_the_command_shows_what_it_measured_and_forgets_it",)),
    Task(28, "eval", ("cli/test_eval.py::test_a_table_has_a_row_for_each_model_and_the_base_first",)),
    Task(29, "devices", (
        "cli/test_commands.py::test_devices_are_listed_for_people_and_scripts",
        "loading/test_device_list.py::test_available_devices_come_first_and_remedies_stand_alone")),
    Task(30, "a GGUF file", (
        "loading/test_load_gguf.py::test_the_commands_take_a_file",
        "first_hour/test_real_model.py::test_a_gguf_file_answers_and_is_exported_once")),
    Task(31, "a name of the hub without a network", (
        "hub/test_repository.py::test_what_is_neither_a_folder_nor_a_repository_is_told_as_both",)),
    Task(32, "wrong folders and files; a checkpoint; an address", (
        "loading/test_load.py::test_an_address_is_refused_as_one",
        "loading/test_load_checkpoint.py::test_a_checkpoint_says_what_its_export_says",
        "loading/test_load.py::test_a_damaged_small_file_is_found_before_the_weights_are_loaded",
        "cli/test_commands.py::test_inspect_finds_a_changed_file")),
    Task(33, "an unknown device", (
        "loading/test_load.py::test_an_unknown_device_is_an_error_that_lists_what_was_tried",
        "cli/test_commands.py::test_an_unknown_device_gets_the_librarys_answer")),
    Task(34, "a prompt that is too long", (
        "model/test_model.py::test_a_prompt_that_leaves_no_room_is_refused_and_not_cut",
        "cli/test_chat.py::test_a_full_context_is_said_and_the_conversation_goes_on")),
    Task(35, "OpenVINO", (
        "backends/openvino/test_npu.py::test_the_demo_replies_as_on_openvino",
        "export/openvino/test_decoder.py::test_logits_follow_the_reference")),
    Task(36, "the worker", (
        "integrations/worker/test_process.py::test_a_chat_is_the_librarys_and_its_chunks_join_to_it",
        "integrations/worker/test_process.py::test_requests_that_are_piped_in_at_once_are_cancelled_and_stderr_says_why")),
    Task(37, "samples/npu_assistant", (
        "samples/test_npu_assistant_demo.py::test_the_demo_calls_the_calculator_and_says_its_result",
        "samples/test_npu_assistant_demo.py::test_the_right_passage_is_read_first_and_named_below_the_reply")),
    Task(38, "samples/desktop", (
        "samples/test_desktop.py::test_it_runs_as_a_program",
        "samples/test_desktop_transcript.py::test_a_reply_is_shown_as_markdown_and_commands_as_they_are",
        "samples/test_desktop_transcript.py::test_the_picker_takes_gguf_files_and_names_of_the_hub",
        "samples/test_desktop_panes.py::test_a_tool_runs_once_it_is_allowed"), by_hand="whether it looks good"),
    Task(39, "samples/web/serve.py in a new environment", (
        "project/test_packaging.py::test_the_wheel_for_browsers_is_built_in_a_new_environment",)),
    Task(40, "the web chat in Chromium", (
        "web/test_samples.py::test_a_reply_grows_is_stopped_and_the_chat_outlives_the_page",
        "web/test_samples.py::test_it_works_offline_after_one_visit",
        "web/test_samples.py::test_the_engine_python_gives_the_same_reply"), by_hand="whether it looks good"),
    Task(41, "the browser snippet; npm install", (
        "web/test_docs.py::test_javascript_examples_run",
        "first_hour/test_tasks.py::test_no_page_names_a_package_that_is_not_published")),
    Task(42, "PyInstaller", ("project/test_pyinstaller.py::test_a_packed_program_answers",)),
    Task(43, "the wheel in another environment", (
        "project/test_packaging.py::test_an_installed_wheel_answers_with_its_demo",
        "project/test_packaging.py::test_the_wheel_holds_the_modules_the_demo_and_nothing_else")),
    Task(44, "types and help()", (
        "project/test_python_reference.py::test_help_of_a_call_names_its_options",
        "project/test_python_reference.py::test_every_field_says_what_it_is",
        "generation/test_options.py::test_every_field_of_sampling_is_an_option_of_the_same_type")),
    Task(45, "text that is piped in beside a text", (
        "cli/test_commands.py::test_what_is_piped_in_follows_the_text",
        "first_hour/test_real_model.py::test_what_is_piped_in_is_read")),
    Task(46, "chat MODEL, run MODEL; serve, pull, list, rm", (
        "cli/test_commands.py::test_the_model_may_be_named_by_its_place",
        "cli/test_commands.py::test_other_programs_names_of_commands_are_understood",
        "cli/test_commands.py::test_an_unknown_command_is_answered_with_the_nearest")),
)  # fmt: skip
