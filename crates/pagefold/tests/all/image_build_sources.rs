//! `image build`: images of archives, streams and other images, from the command line.

use crate::support::{Sandbox, have, kill, wait_until};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A sandbox with a directory, its archive `a.tar`, and its image.
fn sandbox() -> (Sandbox, PathBuf, Vec<u8>) {
    let s = Sandbox::new();
    let source = s.path("source");
    fs::create_dir_all(source.join("d")).unwrap();
    fs::write(source.join("d/text"), "a line of text\n".repeat(10_000)).unwrap();
    fs::write(source.join("object.o"), "o").unwrap();
    std::os::unix::fs::symlink("d/text", source.join("link")).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--format=pax", "-cf", "a.tar", "-C", "source", "."]);
    assert!(tar.current_dir(s.path("")).status().unwrap().success());
    let image = s.path("image");
    s.ok(&format!("image build -z lz4 {} {}", source.display(), image.display()));
    let bytes = fs::read(&image).unwrap();
    (s, image, bytes)
}

/// The names in the sandbox that begin with a dot.
fn hidden(s: &Sandbox) -> Vec<String> {
    let entries = fs::read_dir(s.path("")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

#[test]
fn a_directory_its_archive_and_its_image_give_the_same_image() {
    let (s, image, wanted) = sandbox();
    let (out, archive) = (s.path("out"), s.path("a.tar"));
    let built = |source: &str| {
        s.ok(&format!("image build -z lz4 --verify {source} {}", out.display()));
        fs::read(&out).unwrap() == wanted
    };
    assert!(built(&archive.display().to_string()) && built(&image.display().to_string()));
    for (program, suffix) in [("gzip", "gz"), ("xz", "xz"), ("zstd", "zst")] {
        if !have(program) {
            continue;
        }
        let compressed = s.path(&format!("a.tar.{suffix}"));
        let mut run = Command::new(program);
        run.arg("-c").arg(&archive).stdout(File::create(&compressed).unwrap());
        assert!(run.status().unwrap().success());
        assert!(built(&compressed.display().to_string()), "{program}");
        let mut piped = s.command(&format!("image build -z lz4 - {}", out.display()));
        assert!(piped.stdin(File::open(&compressed).unwrap()).output().unwrap().status.success());
        assert!(fs::read(&out).unwrap() == wanted, "{program}");
    }
    let excluded = format!("image build -z lz4 --exclude *.o {} {}", archive.display(), out.display());
    s.ok(&excluded);
    s.run(&format!("image cat {} /object.o", out.display())).fails(3, "no such file");
    s.ok(&format!("image cat {} /link", out.display()));
    assert!(hidden(&s).is_empty());
}

#[test]
fn sources_that_cannot_be_used_leave_nothing() {
    let (s, image, _) = sandbox();
    let out = s.path("out");
    let archive = fs::read(s.path("a.tar")).unwrap();
    fs::write(s.path("cut.tar"), &archive[..2000]).unwrap();
    fs::write(s.path("text"), "text").unwrap();
    fs::write(s.path("bz"), "BZh91AY&SY").unwrap();
    let gzip = Command::new("gzip").arg("-c").arg(s.path("a.tar")).output().unwrap().stdout;
    fs::write(s.path("cut.gz"), &gzip[..gzip.len() - 9]).unwrap();
    let at = |name: &str| s.path(name).display().to_string();
    let source = at("source");
    for (words, code, message) in [
        (at("none"), 3, "none"),
        (at("text"), 2, "no tar archive (plain, or compressed by gzip, zstd or xz) and no EROFS image"),
        (at("bz"), 2, "needs bzip2"),
        (at("cut.tar"), 6, "the archive is cut off"),
        (at("cut.gz"), 6, "is damaged, or cut off; get it again"),
        (format!("--one-file-system {}", at("a.tar")), 2, "--one-file-system is for directories"),
        (format!("--ignore-zeros {source}"), 2, "--ignore-zeros is for tar archives"),
        (format!("--device {} {source}", image.display()), 2, "--device is for images"),
        (format!("--device {} {}", image.display(), at("a.tar")), 2, "--device is for images"),
        (format!("--device {} {}", at("text"), image.display()), 2, "--device"),
        (format!("--device {} {}", at("none"), image.display()), 3, "none"),
        (format!("--ignore-unreadable {}", image.display()), 2, "--ignore-unreadable is for directories"),
        ("/dev/null".into(), 2, "is a pipe or a device"),
    ] {
        s.run(&format!("image build {words} {}", out.display())).fails(code, message);
        assert!(!out.exists() && hidden(&s).is_empty(), "{words}");
    }
    for path in ["a.tar", "cut.gz"].map(|name| s.path(name)) {
        let before = fs::read(&path).unwrap();
        let shown = path.display();
        s.run(&format!("image build {shown} {shown}")).fails(2, "would be replaced by its image");
        assert!(fs::read(&path).unwrap() == before && hidden(&s).is_empty());
    }
    for (input, code, message) in
        [("text", 2, "'-' has no tar archive in it"), ("image", 2, "'-' has an image")]
    {
        let mut piped = s.command(&format!("image build - {}", out.display()));
        let run = piped.stdin(File::open(s.path(input)).unwrap()).stderr(Stdio::piped()).output().unwrap();
        let text = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(code), "{text}");
        assert!(text.contains(message) && !out.exists() && hidden(&s).is_empty(), "{text}");
    }
}

/// The standard error of a build that succeeds.
fn notes(s: &Sandbox, words: &str) -> String {
    let run = s.command(&format!("image build -z lz4 {words} {}", s.path("out").display())).output().unwrap();
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{text}");
    text
}

#[test]
fn archives_with_an_unusual_end_are_taken_with_a_note() {
    let (s, _, wanted) = sandbox();
    let archive = fs::read(s.path("a.tar")).unwrap();
    let end = archive.iter().rposition(|&byte| byte != 0).unwrap().next_multiple_of(512);
    let gzip = Command::new("gzip").arg("-c").arg(s.path("a.tar")).output().unwrap().stdout;
    let again = [&archive[..], &archive].concat();
    for (name, bytes, option, note) in [
        ("no-end.tar", archive[..end].to_vec(), "", "the archive ends without blocks of zeroes"),
        (
            "one.tar",
            archive[..end + 512].to_vec(),
            "",
            "the archive ends with one block of zeroes in place of two",
        ),
        (
            "signed.tar.gz",
            [&gzip[..], b"signature"].concat(),
            "",
            "has 9 bytes that are no gzip member after its end",
        ),
        ("padded.tar.gz", [&gzip[..], &[0; 600]].concat(), "", ""),
        ("again.tar", again.clone(), "", "--ignore-zeros reads archives that were written one after another"),
        ("again.tar", again, "--ignore-zeros", ""),
    ] {
        let path = s.path(name);
        fs::write(&path, bytes).unwrap();
        let found = notes(&s, &format!("{option} {}", path.display()));
        assert!(found.contains(note) && found.contains("note: ") != note.is_empty(), "{name}: {found}");
        assert!(note.is_empty() || found.contains(&format!("'{}'", path.display())), "{name}: {found}");
        assert!(fs::read(s.path("out")).unwrap() == wanted, "{name}");
    }
}

#[test]
fn a_signal_ends_the_command_though_standard_input_has_no_data() {
    let (s, _, _) = sandbox();
    let archive = fs::read(s.path("a.tar")).unwrap();
    for written in [0, 3, 1000] {
        let mut command = s.quietly(&format!("image build - {}", s.path("out").display()));
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(&archive[..written]).unwrap();
        wait_until("the command has its temporary file", || hidden(&s).len() == 1);
        kill(child.id() as i32, "TERM");
        wait_until("the command ends", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(1));
        assert!(hidden(&s).is_empty() && !s.path("out").exists());
        drop(pipe);
    }
}

#[test]
fn an_image_on_several_devices_is_a_source() {
    let s = Sandbox::new();
    let feature = crate::images::features::feature("blob");
    let (image, out) = (s.path("blob"), s.path("out"));
    fs::write(&image, &feature.bytes).unwrap();
    let mut words = format!("image build -z lz4 --verify {} {}", image.display(), out.display());
    // Without its device the image cannot be opened.
    s.run(&words).fails(2, "--device");
    assert!(!out.exists() && hidden(&s).is_empty());
    let mut devices = String::new();
    for (number, bytes) in feature.devices.iter().enumerate() {
        let device = s.path(&format!("device-{number}"));
        fs::write(&device, bytes).unwrap();
        devices += &format!(" --device {}", device.display());
    }
    words += &devices;
    s.ok(&words);
    // The command has compared the contents; the image is whole.
    s.ok(&format!("image check --strict {}", out.display()));
}

#[test]
fn whiteouts_of_a_layer_become_those_of_overlayfs() {
    let s = Sandbox::new();
    fs::create_dir_all(s.path("layer/d")).unwrap();
    fs::write(s.path("layer/.wh.gone"), "").unwrap();
    fs::write(s.path("layer/d/.wh..wh..opq"), "").unwrap();
    let tar = Command::new("tar").args(["-cf", "a.tar", "-C", "layer", "."]).current_dir(s.path("")).status();
    assert!(tar.unwrap().success());
    let (archive, out) = (s.path("a.tar"), s.path("out"));
    let (archive, out) = (archive.display(), out.display());
    s.ok(&format!("image build --whiteouts overlay {archive} {out}"));
    let gone = s.ok(&format!("image ls -l {out} /"));
    assert!(gone.lines().any(|line| line.starts_with('c') && line.ends_with("gone")), "{gone}");
    let shown = s.ok(&format!("image show {out} /d"));
    assert!(shown.contains("trusted.overlay.opaque"), "{shown}");
    s.ok(&format!("image build {archive} {out}"));
    assert!(s.ok(&format!("image ls {out} /")).contains(".wh.gone"));
}

#[test]
fn directories_are_refused_where_owners_are_faked() {
    let (s, image, wanted) = sandbox();
    let (source, out) = (s.path("source"), s.path("out"));
    let run = |words: &str, envs: &[(&str, &str)]| {
        let mut command = s.command(words);
        let output = command.env_remove("LD_PRELOAD").envs(envs.iter().copied()).output().unwrap();
        crate::support::Ran::new(words, output)
    };
    let build = format!("image build -z lz4 {} {}", source.display(), out.display());
    let extract = format!("image extract --privileged {} {}", image.display(), s.path("to").display());
    let preload = ("LD_PRELOAD", "libc.so.6");
    for (name, program) in [("FAKEROOTKEY", "fakeroot"), ("PSEUDO_PREFIX", "pseudo")] {
        let envs = [preload, (name, "1")];
        let archive = format!("run tar --xattrs -C '{}' -c . | pagefold image build - ", source.display());
        run(&build, &envs).fails(2, &archive);
        run(&extract, &envs).fails(2, &format!("under {program} this command would set the real owners"));
        assert!(!out.exists() && !s.path("to").exists() && hidden(&s).is_empty());
        // An archive has what they show, and without the library nothing is faked.
        let from_archive = format!("image build -z lz4 {} {}", s.path("a.tar").display(), out.display());
        for (words, envs) in [(&from_archive, &envs[..]), (&build, &[(name, "1")]), (&build, &[preload])] {
            let run = run(words, envs);
            assert_eq!(run.code, 0, "{}", run.err);
            assert!(fs::read(&out).unwrap() == wanted);
            fs::remove_file(&out).unwrap();
        }
    }
}
