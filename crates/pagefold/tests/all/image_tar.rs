//! `image tar`: archives on standard output and in files.

use crate::images::handmade::{File, REGULAR, image_of};
use crate::support::{Sandbox, have, kill, wait_until};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A sandbox with an image of two files.
fn sandbox() -> (Sandbox, PathBuf) {
    let s = Sandbox::new();
    let image = s.path("image");
    let long = File::regular(&[b'x'; 100_000]);
    let bytes = image_of(&[("a", REGULAR), ("b", REGULAR)], vec![File::regular(b"contents"), long]);
    std::fs::write(&image, bytes).unwrap();
    (s, image)
}

/// The names in the folder of a path that begin with a dot.
fn hidden(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

fn members(archive: &Path) -> String {
    let listed = Command::new("tar").arg("-tf").arg(archive).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    String::from_utf8(listed.stdout).unwrap()
}

#[test]
fn an_archive_gets_its_name_when_it_is_complete() {
    let (s, image) = sandbox();
    let (out, image) = (s.path("out.tar"), image.display());
    s.ok(&format!("image tar {image} -o {} /a", out.display()));
    assert!(members(&out).ends_with("a\n") && !members(&out).contains('b'));
    std::fs::set_permissions(&out, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = std::fs::read(&out).unwrap();
    for (more, code, message) in [
        ("--max-bytes 8K", 1, "was not written"),
        ("--max-inodes 1", 1, "--max-inodes"),
        ("/nope", 3, "no such file"),
    ] {
        let words = format!("image tar {image} -o {} {more}", out.display());
        s.run(&words).fails(code, message);
        assert!(std::fs::read(&out).unwrap() == before && hidden(&out).is_empty(), "{words}");
        let new = s.path("new.tar");
        s.run(&format!("image tar {image} -o {} {more}", new.display())).fails(code, message);
        assert!(!new.exists() && hidden(&new).is_empty(), "{words}");
    }
    // Through a link, with the permissions of the file that is replaced.
    let link = s.path("link.tar");
    std::os::unix::fs::symlink(&out, &link).unwrap();
    s.ok(&format!("image tar {image} -o {}", link.display()));
    assert!(link.is_symlink() && members(&out).contains('b'));
    assert_eq!(std::fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(
        std::fs::read(&out).unwrap(),
        s.command(&format!("image tar {image}")).output().unwrap().stdout
    );
}

#[test]
fn an_archive_of_a_damaged_image_is_complete_but_for_the_damage() {
    let (s, image) = sandbox();
    let mut bytes = std::fs::read(&image).unwrap();
    bytes.truncate(bytes.len() - 8192);
    std::fs::write(&image, bytes).unwrap();
    let out = s.path("out.tar");
    s.run(&format!("image tar {} -o {}", image.display(), out.display())).fails(6, "wrong or missing");
    assert!(members(&out).contains('a') && members(&out).contains('b'));
    s.run(&format!("image tar {}", image.display())).fails(6, "wrong or missing");
}

#[test]
fn a_device_or_a_folder_is_not_replaced_by_an_archive() {
    let (s, image) = sandbox();
    let image = image.display();
    s.ok(&format!("image tar {image} -o /dev/null"));
    assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    let folder = s.path("folder");
    std::fs::create_dir(&folder).unwrap();
    s.run(&format!("image tar {image} -o {}", folder.display())).fails(2, "is a directory");
    s.run(&format!("image tar {image} -o {}", s.path("none/out.tar").display())).fails(3, "No such file");
    let full = s.run(&format!("image tar {image} -o /dev/full"));
    full.fails(1, "/dev/full");
}

#[test]
fn an_interrupted_archive_leaves_nothing() {
    let s = Sandbox::new();
    let (image, out) = (s.path("image"), s.path("out.tar"));
    // Its file is long enough that writing it takes a while.
    std::fs::write(&image, crate::image_show::image()).unwrap();
    std::fs::write(&out, "before").unwrap();
    for signal in ["INT", "TERM"] {
        let words = format!("image tar --max-bytes 4G {} -o {}", image.display(), out.display());
        let mut command = s.command(&words);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let is_begun = || {
            let part = hidden(&out).first().map(|name| out.with_file_name(name));
            part.is_some_and(|part| std::fs::metadata(part).is_ok_and(|part| part.len() > 0))
        };
        wait_until("the archive is begun", || is_begun() || child.try_wait().unwrap().is_some());
        kill(child.id() as i32, signal);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("interrupted"), "{signal}: {said}");
        assert!(std::fs::read(&out).unwrap() == b"before" && hidden(&out).is_empty(), "{signal}");
    }
}

#[test]
fn an_interrupted_extraction_says_so_and_leaves_no_half_file() {
    let s = Sandbox::new();
    let (image, dir) = (s.path("image"), s.path("dir"));
    // Its file is long enough that writing it takes a while.
    std::fs::write(&image, crate::image_show::image()).unwrap();
    for signal in ["INT", "TERM"] {
        let words = format!("image extract {} {}", image.display(), dir.display());
        let mut child = s.command(&words).stderr(Stdio::piped()).spawn().unwrap();
        let is_begun = || std::fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_some());
        wait_until("the extraction is begun", || is_begun() || child.try_wait().unwrap().is_some());
        kill(child.id() as i32, signal);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("interrupted: "), "{signal}: {said}");
        // The directory was made by the command, which removes it if it is empty.
        assert!(!dir.exists(), "{signal}: {said}");
    }
}

#[test]
fn an_archive_is_not_printed_on_a_terminal() {
    let (s, image) = sandbox();
    if !have("script") {
        return pagefold_testkit::skipped!(
            "an_archive_is_not_printed_on_a_terminal: script is not installed"
        );
    }
    for more in ["", "-o /dev/tty"] {
        let words = format!("{} image tar {} {more}", env!("CARGO_BIN_EXE_pagefold"), image.display());
        let output =
            Command::new("script").args(["-qec", &words, "/dev/null"]).current_dir(s.path("")).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("terminal"), "{words}: {said}");
        assert!(!said.contains("ustar"), "{words}: {said}");
    }
}

#[test]
fn what_is_readable_of_a_damaged_file_is_kept() {
    const FILE: &str = "/usr/share/doc/app/README";
    let s = Sandbox::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../image/tests/fixtures/app.erofs");
    let (image, out) = (s.path("app.erofs"), s.path("out.tar"));
    let mut bytes = std::fs::read(source).unwrap();
    std::fs::write(&image, &bytes).unwrap();
    let cat = format!("image cat {} {FILE}", image.display());
    let whole = s.ok(&cat).into_bytes();
    bytes[9000..9008].fill(0xee);
    std::fs::write(&image, &bytes).unwrap();
    let printed = s.run(&cat);
    printed.fails(6, "byte ");
    let prefix = printed.out.into_bytes();
    assert!(
        prefix.len() > 10_000 && prefix.len() < whole.len() && whole.starts_with(&prefix),
        "{}",
        prefix.len()
    );
    s.run(&format!("image tar {} -o {}", image.display(), out.display())).fails(6, "zeroes instead");
    let member = format!(".{FILE}");
    let archived =
        Command::new("tar").arg("-xOf").arg(&out).args([&member, &member[2..]]).output().unwrap().stdout;
    let archived = &archived[..whole.len()];
    let differing: Vec<usize> = (0..whole.len()).filter(|&i| archived[i] != whole[i]).collect();
    let (first, last) = (differing[0], differing[differing.len() - 1]);
    assert!(first >= prefix.len() && last < whole.len() - 10_000, "{first} to {last}");
    assert!(differing.iter().all(|&i| archived[i] == 0));
}
