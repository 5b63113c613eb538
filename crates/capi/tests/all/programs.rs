//! C programs, whose assertions are in their sources.

use crate::support::{CRATE, Installed, KINDS, Kind, can, has_regions, run, text};
use std::path::Path;

/// Compiles a source of the crate in each way, and runs it with each list of arguments.
fn check(path: &str, kinds: &[Kind], runs: &[&[&str]]) {
    check_with(path, kinds, &[], runs);
}

/// Like [`check`], with options of the compiler.
fn check_with(path: &str, kinds: &[Kind], options: &[&str], runs: &[&[&str]]) {
    let Some(installed) = Installed::new(path).filter(|_| has_regions(path)) else { return };
    for kind in kinds.iter().copied().filter(|kind| can(path, *kind)) {
        let program = installed.compile(&Path::new(CRATE).join(path), kind, options);
        for arguments in runs {
            let output = run(installed.command(&program).args(*arguments));
            assert!(output.stderr.is_empty(), "{path} {kind:?}: {}", text(&output.stderr));
        }
    }
}

#[test]
fn regions_do_what_the_header_says() {
    check("tests/programs/region.c", &KINDS, &[&[]]);
}

#[test]
fn pressure_is_reported_and_ends() {
    check("tests/programs/pressure.c", &KINDS, &[&[]]);
}

#[test]
fn callbacks_do_not_run_at_once_and_do_not_wait_for_each_other() {
    check("tests/programs/callbacks.c", &[Kind::Shared, Kind::Static], &[&[]]);
}

#[test]
fn a_destroyed_region_is_gone_while_its_last_pin_ends() {
    check("tests/programs/last_pin.c", &[Kind::Shared, Kind::Static], &[&[]]);
}

#[test]
fn threads_that_block_sigbus_are_refused() {
    check("tests/programs/blocked.c", &[Kind::Shared, Kind::Static], &[&[]]);
}

#[test]
fn programs_in_go_need_handler_threads() {
    check_with("tests/programs/goroutines.c", &[Kind::Shared, Kind::Static], &["-rdynamic"], &[&[]]);
}

#[test]
fn regions_share_a_limit() {
    check("tests/programs/budget.c", &KINDS, &[&[]]);
}

#[test]
fn a_child_gets_errors_and_the_parent_goes_on() {
    // AddressSanitizer's allocator does not survive a fork in a program that has threads.
    check("tests/programs/fork.c", &[Kind::Shared, Kind::Static], &[&[]]);
}

#[test]
fn limits_of_the_process_are_named() {
    // AddressSanitizer takes terabytes of addresses.
    check("tests/programs/limits.c", &[Kind::Shared, Kind::Static], &[&[]]);
}

#[test]
fn arenas_do_what_the_header_says() {
    check("tests/programs/arena.c", &KINDS, &[&[]]);
}

#[test]
fn threads_share_an_arena() {
    check("tests/programs/arena_threads.c", &KINDS, &[&[]]);
}

#[test]
fn random_calls_of_threads_agree_with_a_plain_copy() {
    check("tests/programs/checker.c", &KINDS, &[&["1"], &["2"]]);
}

#[test]
fn random_calls_agree_while_children_are_forked() {
    // As above: not with AddressSanitizer.
    check("tests/programs/checker.c", &[Kind::Shared, Kind::Static], &[&["3", "fork"], &["4", "fork"]]);
}

#[test]
fn the_example_in_c_works_on_more_than_its_memory() {
    check("examples/c/larger_than_memory.c", &KINDS, &[&[]]);
}

#[test]
fn the_example_in_cpp_has_containers_in_compressed_memory() {
    check("examples/cpp/pmr_resource.cpp", &KINDS, &[&[]]);
}
