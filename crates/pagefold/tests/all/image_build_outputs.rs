//! `image build`: the file that is written, and what is said about names that are left out.

use crate::support::Sandbox;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn sandbox() -> (Sandbox, PathBuf) {
    let s = Sandbox::new();
    let source = s.path("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("text"), "a line of text\n".repeat(10_000)).unwrap();
    (s, source)
}

fn build(source: &Path, out: &Path, options: &str) -> String {
    format!("image build --kernel 6.12 -z lz4 {options} {} {}", source.display(), out.display())
}

#[test]
fn other_names_of_the_file_that_is_replaced_stay_in_the_image() {
    let (s, source) = sandbox();
    let (keep, out, inside) = (source.join("keep"), s.path("out"), source.join("image"));
    fs::write(&keep, "contents").unwrap();
    for out in [&out, &inside] {
        fs::hard_link(&keep, out).unwrap();
        s.ok(&build(&source, out, ""));
        let listed = s.ok(&format!("image ls {} /", out.display()));
        assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["keep", "text"], "{}", out.display());
        assert_eq!(fs::read(&keep).unwrap(), b"contents");
    }
}

#[test]
fn an_image_in_its_source_is_that_of_another_folder() {
    let (s, source) = sandbox();
    let below = source.join("below");
    fs::create_dir(&below).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
    let set_times = || {
        for path in [source.join("text"), below.clone(), source.clone()] {
            fs::File::open(path).unwrap().set_modified(time).unwrap();
        }
    };
    set_times();
    let outside = s.path("out");
    s.ok(&build(&source, &outside, ""));
    for inside in [source.join("image"), below.join("image")] {
        s.ok(&build(&source, &inside, ""));
        assert!(fs::read(&inside).unwrap() == fs::read(&outside).unwrap(), "{}", inside.display());
        fs::remove_file(inside).unwrap();
        set_times();
    }
}

#[test]
fn a_pattern_that_matches_nothing_is_noted() {
    let (s, source) = sandbox();
    fs::create_dir(source.join("d")).unwrap();
    fs::write(source.join("d/secret"), "secret").unwrap();
    let run =
        s.run(&build(&source, &s.path("out"), "--exclude ./d/ --exclude x --rule ./text=zstd --rule y=none"));
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.contains("--exclude 'x' matched nothing") && !run.err.contains("./d/"), "{}", run.err);
    assert!(run.err.contains("--rule 'y' decided for no file") && !run.err.contains("./text"), "{}", run.err);
    let listed = s.ok(&format!("image ls -R {} /", s.path("out").display()));
    assert!(!listed.contains("/d") && listed.contains("/text"), "{listed}");
}

#[test]
fn a_limit_of_the_length_of_files_leaves_no_half_image() {
    let (s, source) = sandbox();
    let folder = s.path("folder");
    fs::create_dir(&folder).unwrap();
    let command = s.command(&build(&source, &folder.join("out"), ""));
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -f 2; exec \"$@\"", "sh"])
        .arg(command.get_program())
        .args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("writing") && said.contains("File too large"), "{said}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

/// The new file has the permissions of the old one, by which it cannot be opened again.
#[test]
fn an_image_is_verified_though_its_file_cannot_be_opened() {
    let (s, source) = sandbox();
    let out = s.path("out");
    fs::write(&out, "before").unwrap();
    fs::set_permissions(&out, fs::Permissions::from_mode(0o000)).unwrap();
    s.ok(&build(&source, &out, "--verify"));
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0);
}
