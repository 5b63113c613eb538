//! The tests of README.md, of the guides, and of their checker. The guide to zram is tested with the shell (`tests/zram_shell`).

#[path = "check.rs"]
mod check;

use check::{check, check_document};

#[test]
#[cfg_attr(not(feature = "zram"), ignore = "names the commands of the feature `zram`")]
fn readme() {
    check_document("README.md");
}

#[test]
fn disk() {
    check_document("docs/disk.md");
}

#[test]
fn image() {
    check_document("docs/image.md");
}

#[test]
fn image_build() {
    check_document("docs/image/build.md");
}

#[test]
fn image_check() {
    check_document("docs/image/check.md");
}

#[test]
fn image_erofs_utils() {
    check_document("docs/image/erofs-utils.md");
}

#[test]
fn image_extract() {
    check_document("docs/image/extract.md");
}

#[test]
fn image_mount() {
    check_document("docs/image/mount.md");
}

#[test]
fn image_servers() {
    check_document("docs/image/servers.md");
}

#[test]
fn memory() {
    check_document("docs/memory.md");
}

#[test]
fn reference() {
    check_document("docs/reference.md");
}

/// The faults of a document that consists of this text.
fn faults(text: &str) -> String {
    check("test", text).unwrap_err()
}

#[test]
fn blocks_that_no_test_would_check_are_faults() {
    assert!(faults("```\ncode\n```\n").contains("language of the block is none"));
    assert!(faults("```toml\ncode\n```\n").contains("language of the block is toml"));
    assert!(faults("```rust ignore\ncode\n```\n").contains("'ignore'"));
    assert!(faults("Text\n\n    code\n").contains("line 3: an indented code block"));
    assert!(faults("- item\n\n      code\n").contains("line 3: an indented code block"));
    assert!(faults("```sh\ntrue\n").contains("not closed"));
    assert!(faults("```console\noutput\n```\n").contains("sample output without a command"));
    check("test", "- item\n\n    - item\n\n  more\n  ```text\n  code\n  ```\n").unwrap();
}

#[test]
fn commands_and_options_that_do_not_exist_are_faults() {
    assert!(faults("```sh no_run\npagefold disk made\n```\n").contains("no command 'pagefold disk made'"));
    assert!(faults("```sh no_run\npagefold disk list --jsn\n```\n").contains("has no option --jsn"));
    assert!(faults("```sh no_run\ncargo run -- disk list -Z\n```\n").contains("has no option -Z"));
    assert!(faults("See `disk create --sise 1G`.\n").contains("has no option --sise"));
    assert!(faults("See `pagefold image COMMAND --hlp`.\n").contains("has no option --hlp"));
}

#[test]
fn commands_that_fail_are_faults() {
    assert!(faults("```sh\ntrue\nfalse\n```\n").starts_with("line 2 of test: exit status: 1"));
    assert!(faults("```console\n$ false && true\n```\n").starts_with("line 2 of test: exit status: 1"));
    assert!(faults("```console\n$ true\npagefold: error: no\n```\n").contains("but the command succeeded"));
    check("test", "```console\n$ false\npagefold: error: no\n$ grep -q Line app.erofs\n```\n").unwrap();
    check("test", "```sh no_run\nfalse\n```\n").unwrap();
}

#[test]
fn commands_that_name_a_device_are_faults() {
    for command in ["mkfs.ext4 /dev/loop0", "nbd-client -d /dev/nbd0", "tar -cf /dev/sda1 x", "x >'/dev/vda'"]
    {
        for block in ["```sh\n%\n```\n", "```sh no_run\n%\n```\n", "```console\n# %\n/dev/loop0\n```\n"] {
            let text = block.replace('%', command);
            assert!(faults(&text).contains("may belong to another program"), "{text}");
        }
    }
    check("test", "```console\n$ dev=/dev/$(echo null) && true >\"$dev\" 2>/dev/null\n/dev/loop0\n```\n")
        .unwrap();
}

#[test]
fn labels_that_do_not_exist_are_faults() {
    let sample = |label: &str| format!("```console\n$ pagefold image show app.erofs\n{label:<20}6.1\n```\n");
    check("test", &sample("  kernel")).unwrap();
    assert!(faults(&sample("  core")).contains("line 2: 'core' is not in the output"));
}

#[test]
fn disks_that_are_left_behind_are_faults() {
    let create = "pagefold disk create --size 1M --name x --export nbd";
    assert_eq!(faults(&format!("```sh\n{create}\n```\n")), "test leaves behind: x");
    check("test", &format!("```sh\n{create}\npagefold disk remove x\n```\n")).unwrap();
    if !crate::support::is_root() {
        pagefold_testkit::skipped!("disks_that_are_left_behind_are_faults: needs root");
        return;
    }
    let mount = "mkdir mnt\nmount -t tmpfs none mnt";
    assert!(faults(&format!("```sh\n{mount}\n```\n")).contains("leaves behind: a mount on"));
}
