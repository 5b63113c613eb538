//! Containers of containerd, from what pagefold makes: `tests/guest/containerd.sh`. Full tier only: `PAGEFOLD_FULL=1`. Builds
//! containerd, which takes minutes, only with `PAGEFOLD_LONG`.

use pagefold_testkit::skipped;
use std::path::Path;
use std::process::Command;

#[test]
fn containerd_runs_containers_from_cached_converted_and_pushed_layers() {
    let test = "containerd_runs_containers_from_cached_converted_and_pushed_layers";
    if std::env::var_os("PAGEFOLD_FULL").is_none() {
        return skipped!("{test}: takes a quarter of a minute; set PAGEFOLD_FULL=1");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest/containerd.sh");
    let mut command = Command::new(script);
    if std::env::var_os("PAGEFOLD_LONG").is_none() {
        command.arg("--built");
    }
    let ran = command.env("PAGEFOLD_PROGRAM", env!("CARGO_BIN_EXE_pagefold")).output().unwrap();
    let [out, err] = [&ran.stdout, &ran.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    match ran.status.code() {
        Some(2) => skipped!("{test}: {}", err.trim().replace('\n', " ")),
        _ => assert!(ran.status.success() && out.contains("RESULT: ok"), "{out}{err}"),
    }
}
