"""Most of these loops are long to run (each compiles a program or more): `make test-between` runs them all, `make test`
one of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# What `make test` runs, by the end of its name: what strangers were hurt by most, and each watcher's own kind.
CORE = (
    "test_a_loop_is_eagers[clips_through_data]",
    "test_a_loop_is_eagers[reads_norms]",
    "test_a_loop_is_eagers[schedules_momentum]",
    "test_a_loop_is_eagers[thaws_layer_by_layer]",
    "test_annealed_dropout_draws_from_the_rate_of_its_step",
    "test_a_mean_teacher_in_the_loss_is_the_teacher_of_that_step[no_grad]",
    "test_the_loss_holds_a_weight_that_moves",
    "test_a_number_that_only_counts_compiles_nothing",
    "test_a_buffer_that_forward_binds_anew_is_written[attribute]",
    "test_numbers_that_are_not_torchs_are_refused_by_name[numpy]",
    "test_a_write_survives[freezes_a_layer]",
    "test_a_loss_that_names_the_model",
    "test_a_change_outlives_who_reads_after_it[its_state-freezes]",
    "test_a_change_outlives_who_reads_after_it[one_weight-cools]",
    "test_a_change_outlives_who_reads_after_it[sync_to_torch-replaces_a_layer]",
    "test_nothing_is_lost[certificate]",
    "test_every_code_is_tried",
    "test_what_it_counts_compiles_nothing_and_what_it_reads_is_followed[dictionary]",
    "test_a_loss_that_holds_the_model_again[by a weak reference]",
    "test_what_is_done_to_it_is_done_to_the_step[4-clears]",
    "test_a_write_through_it_is_one_to_the_module[behind the first step-data]",
    "test_a_function_of_a_library_that_is_replaced[torch.nn.functional]",
    "test_a_tensor_of_the_batch_asks_for_its_gradient_in_some_steps[every third step]",
    "test_a_dataclass_is_what_it_holds_and_not_what_its_class_makes_of_that[Normalised]",
    "test_a_tensor_of_the_module_beside_the_loss_is_the_live_one[later-a view]",
    "test_a_plain_value_beside_the_loss_is_that_of_its_step[a counter]",
    "test_a_state_dict_is_what_the_module_says[Versioned]",
    "test_a_seed_before_each_step_is_told_once[<lambda>0]",
    "test_the_model_has_what_was_trained",
    "test_another_mask_is_another_program[causal, then a window-copy_]",
    "test_a_larger_vocabulary_through_data_is_another_program",
    "test_what_a_schedule_moves[the_rate_of_the_optimizer]",
    "test_what_stands_beside_a_long_container[a dictionary-hot]",
    "test_a_field_that_moves[as_keywords-Config]",
    "test_a_table_that_the_capture_fills[a global]",
    "test_one_that_was_put_aside_is_followed_too",
    "test_it_is_refused_and_gone_again_the_training_goes_on[at_its_node]",
    "test_something_of_a_library_is_replaced[an_entry]",
    "test_a_function_of_torchs_is_replaced[later-a method of a distribution]",
    "test_a_value_that_is_asked_for_by_a_string[by_globals]",
    "test_a_place_with_an_equal_value_of_another_kind_is_not_the_same",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and not item.nodeid.endswith(CORE):
            item.add_marker(pytest.mark.between)
