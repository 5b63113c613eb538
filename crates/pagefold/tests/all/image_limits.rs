//! Images with more contents than data, and outputs that cannot be written: every command ends with a message and an
//! exit code.

use crate::images::handmade::*;
use crate::support::{Ran, Sandbox};
use std::fs::File as FsFile;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a command, and fails if it does not end within a minute.
fn run(s: &Sandbox, words: &str) -> Ran {
    run_into(s, words, Stdio::piped(), Stdio::piped())
}

fn run_into(s: &Sandbox, words: &str, stdout: Stdio, stderr: Stdio) -> Ran {
    let mut child = s.command(words).stdout(stdout).stderr(stderr).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{words} did not end: {:?}", child.wait_with_output().unwrap().status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ran::new(words, child.wait_with_output().unwrap())
}

fn full() -> Stdio {
    FsFile::options().write(true).open("/dev/full").unwrap().into()
}

/// The writing end of a pipe that nobody reads.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    OwnedFd::from(writer).into()
}

fn written(s: &Sandbox, name: &str, bytes: &[u8]) -> PathBuf {
    let path = s.path(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_fifo_is_refused_as_an_image_without_waiting_for_a_writer() {
    let s = Sandbox::new();
    let pipe = s.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let good = written(&s, "good", &image_of(&[], vec![]));
    std::fs::create_dir(s.path("at")).unwrap();
    let (pipe, good, at) = (pipe.display(), good.display(), s.path("at"));
    let at = at.display();
    for words in [
        format!("image check {pipe}"),
        format!("image ls {pipe}"),
        format!("image ls --device {pipe} {good}"),
        format!("image mount {pipe} {at}"),
        format!("image mount --device {pipe} {good} {at}"),
        format!("image mount --kernel {pipe} {at}"),
    ] {
        let ran = run(&s, &words);
        assert!(ran.code != 0 && ran.err.contains("pagefold: error: "), "{ran:?}");
        let no_root = words.contains("--kernel") && !crate::support::is_root();
        assert!(no_root || ran.err.contains("neither a file nor a block device"), "{ran:?}");
    }
}

#[test]
fn a_surplus_device_is_a_usage_error() {
    let s = Sandbox::new();
    let good = written(&s, "good", &image_of(&[], vec![]));
    let device = written(&s, "device", &[0; 4096]);
    let ran = run(&s, &format!("image ls --device {} {}", device.display(), good.display()));
    ran.fails(2, "--device");
}

#[test]
fn extract_creates_no_directory_if_a_path_is_missing_in_the_image() {
    let s = Sandbox::new();
    let good = written(&s, "good", &image_of(&[("f", REGULAR)], vec![File::regular(b"contents")]));
    let no_root = written(&s, "no-root", &image(&[File::regular(b"contents")]));
    let out = s.path("out");
    run(&s, &format!("image extract {} {} /f /nope", good.display(), out.display())).fails(3, "/nope");
    assert!(!out.exists());
    run(&s, &format!("image extract {} {}", no_root.display(), out.display())).fails(6, "root");
    assert!(!out.exists());
    assert_eq!(run(&s, &format!("image extract {} {} /f", good.display(), out.display())).code, 0);
    assert_eq!(std::fs::read(out.join("f")).unwrap(), b"contents");
}

#[test]
fn many_findings_in_json_take_little_memory() {
    const DIRECTORIES: usize = 60;
    let s = Sandbox::new();
    let names: Vec<_> = (0..200).map(|n| format!("n{n:03}")).collect();
    // The numbers of inodes beyond the end of the image.
    let missing: Vec<_> =
        names.iter().enumerate().map(|(n, name)| (&name[..], 1_000_000 + n, REGULAR)).collect();
    let directory = |number| {
        let own = [(".", number, DIRECTORY), ("..", 0, DIRECTORY)];
        File::directory(2, &[&own[..], &missing].concat())
    };
    let of_root: Vec<_> = (0..DIRECTORIES).map(|n| (format!("d{n:02}"), DIRECTORY)).collect();
    let of_root: Vec<_> = of_root.iter().map(|(name, kind)| (&name[..], *kind)).collect();
    let bytes = image_of(&of_root, (0..DIRECTORIES).map(|n| directory(1 + 2 * n)).collect());
    let image = written(&s, "image", &bytes);
    let out = s.path("out");
    for words in [
        format!("image check -m 256K -j 1 --json {}", image.display()),
        format!("image extract -m 256K -j 1 --json {} {}", image.display(), out.display()),
    ] {
        let plain = s.command(&words);
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -d 20000 && exec \"$@\"", "sh"]);
        let ran = limited.arg(plain.get_program()).args(plain.get_args()).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(6), "{words}: {said}");
        let report: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        let recorded = report["findings"].as_array().unwrap().len();
        let errors = report["errors"].as_u64().unwrap();
        assert!(recorded > 5_000 && errors >= 12_000, "{words}: {recorded}, {said}");
    }
}

#[test]
fn printed_contents_have_a_limit() {
    let s = Sandbox::new();
    let contents: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    let bytes = image_of(
        &[("a", REGULAR), ("b", REGULAR), ("hole", REGULAR)],
        vec![File::regular(b"contents"), File::regular(&contents), File::hole(0o100_644, HUGE)],
    );
    let image = written(&s, "image", &bytes);
    let image = image.display();
    let ran = s.command(&format!("image cat {image} /b")).output().unwrap();
    assert!(ran.status.success() && ran.stdout == contents);
    let ran = s.command(&format!("image cat --max-bytes 1M {image} /b")).output().unwrap();
    assert_eq!((ran.status.code(), ran.stdout.len()), (Some(1), 1 << 20));
    assert!(String::from_utf8(ran.stderr).unwrap().contains("--max-bytes"));
    let ran = s.command(&format!("image cat --max-bytes 3000000 {image} /b")).output().unwrap();
    assert!(ran.status.success() && ran.stdout == contents);
    // The default limit is small for a small image.
    let out = || Stdio::from(FsFile::create("/dev/null").unwrap());
    run_into(&s, &format!("image cat {image} /hole"), out(), Stdio::piped()).fails(1, "--max-bytes");
    // A hole takes no space in an archive.
    let archive = s.command(&format!("image tar {image}")).output().unwrap();
    assert!(archive.status.success() && archive.stdout.len() < 4_000_000, "{}", archive.stdout.len());
    let ran = s.command(&format!("image tar --max-bytes 1M {image}")).output().unwrap();
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.stdout.len() <= 1 << 20, "{} bytes", ran.stdout.len());
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(said.contains("--max-bytes") && said.contains("/b"), "{said}");
    let ran = s.command(&format!("image tar --max-inodes 2 {image}")).output().unwrap();
    assert_eq!(ran.status.code(), Some(1));
    assert!(String::from_utf8(ran.stderr).unwrap().contains("--max-inodes"));
}

#[test]
fn show_works_on_sums_of_impossible_sizes() {
    let s = Sandbox::new();
    let large = || File { size: i64::MAX as u64, ..File::regular(b"short") };
    let names = [("a", REGULAR), ("b", REGULAR), ("c", REGULAR), ("d", REGULAR)];
    let mut bytes = image_of(&names, vec![large(), large(), large(), File::regular(&[0; 4096])]);
    make_compressed(&mut bytes, 7, 1);
    let image = written(&s, "image", &bytes);
    for json in ["", "--json"] {
        let ran = run(&s, &format!("image show {json} {}", image.display()));
        assert_eq!(ran.code, 0, "{ran:?}");
    }
}

#[test]
fn no_command_panics_if_its_output_cannot_be_written() {
    let s = Sandbox::new();
    // One file is valid, and one is beyond the end of the image, so that every command has an error to print.
    let bad = File { size: HUGE, ..File::regular(b"short") };
    let bytes = image_of(&[("bad", REGULAR), ("f", REGULAR)], vec![bad, File::regular(b"contents")]);
    let image = written(&s, "image", &bytes);
    let image = image.display();
    let out = s.path("out");
    let sinks = [("full", full as fn() -> Stdio), ("closed", closed_pipe)];
    let commands = [
        format!("image extract {image} {}", out.display()),
        format!("image extract --json {image} {}", out.display()),
        format!("image tar {image}"),
        format!("image ls -lR {image}"),
        format!("image ls -R --json {image}"),
        format!("image cat {image} /f"),
        format!("image cat {image} /bad /nope"),
        format!("image show {image}"),
        format!("image show --json {image} /f"),
        format!("image check {image}"),
        format!("image check --json {image}"),
    ];
    for words in &commands {
        for (name, sink) in sinks {
            for (stdout, stderr) in [(sink(), Stdio::piped()), (Stdio::null(), sink()), (sink(), sink())] {
                let ran = run_into(&s, words, stdout, stderr);
                // 101 is a panic, -1 a signal.
                assert!((0..=6).contains(&ran.code), "{name}: {ran:?}");
                assert!(!ran.err.contains("panicked"), "{name}: {ran:?}");
                if words.contains("image extract") {
                    assert_eq!(std::fs::read(out.join("f")).unwrap(), b"contents", "{words}");
                    std::fs::remove_dir_all(&out).unwrap();
                }
            }
        }
    }
}
