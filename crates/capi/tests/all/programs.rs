//! C programs, whose assertions are in their sources.

use crate::support::{CRATE, Installed, KINDS, Kind, can, has_regions, run};
use std::path::Path;

/// Compiles a program of `tests/programs` in each way, and runs it.
fn check(name: &str, kinds: &[Kind]) {
    let Some(installed) = Installed::new(name).filter(|_| has_regions(name)) else { return };
    let source = Path::new(CRATE).join("tests/programs").join(name);
    for kind in kinds.iter().copied().filter(|kind| can(name, *kind)) {
        let program = installed.compile(&source, kind, &[]);
        run(&mut installed.command(&program));
    }
}

#[test]
fn regions_do_what_the_header_says() {
    check("region.c", &KINDS);
}

#[test]
fn pressure_is_reported_and_ends() {
    check("pressure.c", &KINDS);
}

#[test]
fn a_child_gets_errors_and_the_parent_goes_on() {
    // AddressSanitizer's allocator does not survive a fork in a program that has threads.
    check("fork.c", &[Kind::Shared, Kind::Static]);
}

#[test]
fn arenas_do_what_the_header_says() {
    check("arena.c", &KINDS);
}

#[test]
fn threads_share_an_arena() {
    check("arena_threads.c", &KINDS);
}
