//! Images that `mkfs.erofs` makes without contents: of an archive (`--tar=i`), and of several images, as containerd has them.
//!
//! The kernel and, where they are installed, the programs of erofs-utils 1.9 read what is built.

use crate::mkfs_erofs::{foreign, is_same, ok, run, sandbox};
use crate::support::Sandbox;
use pagefold_testkit::skipped;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Writes the files one after another into a new one.
fn joined(s: &Sandbox, out: &str, parts: &[&str]) {
    let bytes: Vec<u8> = parts.iter().flat_map(|part| fs::read(s.path(part)).unwrap()).collect();
    fs::write(s.path(out), bytes).unwrap();
}

/// Compares an image and its devices with a directory: by this program, and by fsck.erofs of erofs-utils.
fn check(s: &Sandbox, test: &str, wanted: &Path, image: &str, devices: &[&str]) {
    let options: String = devices.iter().map(|device| format!(" --device={device}")).collect();
    ok(s, &format!("fsck.erofs --extract=out{options} {image}"));
    assert!(is_same(wanted, &s.path("out")), "{image}");
    fs::remove_dir_all(s.path("out")).unwrap();
    let devices_at = devices.iter().map(|device| format!(" --device {}", s.path(device).display()));
    s.ok(&format!("image check{} {}", devices_at.collect::<String>(), s.path(image).display()));
    // That of erofs-utils does not look for devices behind an image.
    if devices.is_empty() {
        return;
    }
    let Some(fsck) = foreign("fsck.erofs") else {
        return skipped!("{test}: PAGEFOLD_EROFS_UTILS names no folder with erofs-utils");
    };
    let mut command = Command::new(fsck);
    command.args(devices.iter().map(|device| format!("--device={device}"))).arg("--extract=out");
    let checked = command.arg(image).current_dir(s.path("")).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    assert!(is_same(wanted, &s.path("out")), "{image}, by erofs-utils");
    fs::remove_dir_all(s.path("out")).unwrap();
}

/// Compares what the kernel shows of an image that has its devices behind it.
fn check_mount(s: &Sandbox, test: &str, wanted: &Path, image: &str) {
    let mnt = s.path("mnt");
    fs::create_dir_all(&mnt).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "erofs", "-o", "ro,loop"]).args([&s.path(image), &mnt]).output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        return skipped!("{test}: the kernel cannot mount {image} here");
    }
    let same = is_same(wanted, &mnt);
    let kernel = file_system(&mnt);
    assert!(Command::new("umount").arg(&mnt).status().unwrap().success());
    assert!(same, "{image}, by the kernel");
    // Our mount counts blocks as the kernel does.
    s.ok(&format!("image mount {} {}", s.path(image).display(), mnt.display()));
    let (same, own) = (is_same(wanted, &mnt), file_system(&mnt));
    s.ok(&format!("image unmount {}", mnt.display()));
    assert!(same && own == kernel, "{image}: {own} here, {kernel} in the kernel");
}

/// The number and the length of the blocks of what is mounted at a place.
fn file_system(mnt: &Path) -> String {
    let shown = Command::new("stat").args(["-f", "-c", "%b %S"]).arg(mnt).output().unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

#[test]
fn an_index_of_an_archive_is_read_with_the_archive_behind_or_beside_it() {
    const TEST: &str = "an_index_of_an_archive_is_read_with_the_archive_behind_or_beside_it";
    let s = sandbox();
    let source = s.path("source");
    // A directory of several blocks, and a link that is longer than a block.
    fs::create_dir(source.join("many")).unwrap();
    for n in 0..200 {
        fs::write(source.join(format!("many/a-name-of-some-length-{n}")), format!("{n}")).unwrap();
    }
    std::os::unix::fs::symlink("x/".repeat(400), source.join("long")).unwrap();
    assert!(
        Command::new("tar")
            .arg("-C")
            .arg(&source)
            .arg("-cf")
            .arg(s.path("layer.tar"))
            .arg(".")
            .status()
            .unwrap()
            .success()
    );
    let ran = run(&s, "mkfs.erofs --tar=i --aufs --quiet index", Some(&s.path("layer.tar")));
    assert!(ran.code == 0 && ran.out.is_empty(), "{ran:?}");
    let len = |name: &str| fs::metadata(s.path(name)).unwrap().len();
    assert!(len("index").is_multiple_of(512) && len("index") < len("layer.tar") / 4, "{}", len("index"));
    let shown = ok(&s, "dump.erofs -s index --device=layer.tar");
    assert!(shown.contains("512") && shown.contains("device_table"), "{shown}");
    check(&s, TEST, &source, "index", &["layer.tar"]);
    // As containerd has it.
    joined(&s, "behind", &["index", "layer.tar"]);
    check(&s, TEST, &source, "behind", &[]);
    check_mount(&s, TEST, &source, "behind");
    run(&s, "fsck.erofs index", None).fails(1, "device");
    // An archive that is cut off is noticed.
    let whole = fs::read(s.path("behind")).unwrap();
    fs::write(s.path("behind"), &whole[..whole.len() - 512]).unwrap();
    run(&s, "fsck.erofs behind", None).fails(1, "device");
    ok(&s, "mkfs.erofs --tar=i --quiet again layer.tar");
    assert_eq!(fs::read(s.path("again")).unwrap(), fs::read(s.path("index")).unwrap());
}

/// Makes two layers as archives, and the directory that they are together.
fn layers(s: &Sandbox) {
    for (path, text) in
        [("l1/dir/a", "a\n".repeat(5000)), ("l1/x", "one".into()), ("l1/dir/gone", "g".into())]
    {
        fs::create_dir_all(s.path(path).parent().unwrap()).unwrap();
        fs::write(s.path(path), text).unwrap();
    }
    fs::hard_link(s.path("l1/x"), s.path("l1/linked")).unwrap();
    fs::create_dir_all(s.path("l2/dir")).unwrap();
    fs::write(s.path("l2/dir/b"), "b\n".repeat(3000)).unwrap();
    fs::write(s.path("l2/x"), "two").unwrap();
    fs::write(s.path("l2/dir/.wh.gone"), "").unwrap();
    for layer in ["l1", "l2"] {
        let (tar, folder) = (s.path(&format!("{layer}.tar")), s.path(layer));
        assert!(
            Command::new("tar")
                .arg("-C")
                .arg(folder)
                .arg("-cf")
                .arg(tar)
                .arg(".")
                .status()
                .unwrap()
                .success()
        );
    }
    fs::create_dir_all(s.path("both/dir")).unwrap();
    for (from, to) in [("l1/dir/a", "dir/a"), ("l2/dir/b", "dir/b"), ("l2/x", "x"), ("l1/linked", "linked")] {
        fs::copy(s.path(from), s.path("both").join(to)).unwrap();
    }
}

#[test]
fn several_images_are_merged_and_keep_their_contents() {
    const TEST: &str = "several_images_are_merged_and_keep_their_contents";
    let s = sandbox();
    layers(&s);
    for layer in ["l1", "l2"] {
        ok(&s, &format!("mkfs.erofs --tar=f --aufs --quiet -Enoinline_data {layer}.img {layer}.tar"));
        ok(&s, &format!("mkfs.erofs --tar=i --aufs --quiet {layer}.index {layer}.tar"));
        joined(&s, &format!("{layer}.behind"), &[&format!("{layer}.index"), &format!("{layer}.tar")]);
    }
    for kind in ["img", "behind"] {
        let parts = [format!("l1.{kind}"), format!("l2.{kind}")];
        let [first, second] = [&*parts[0], &*parts[1]];
        ok(&s, &format!("mkfs.erofs --aufs --ovlfs-strip=1 --quiet merged {first} {second}"));
        assert!(fs::metadata(s.path("merged")).unwrap().len() <= 8192, "it has metadata alone");
        check(&s, TEST, &s.path("both"), "merged", &[first, second]);
        joined(&s, "flat", &["merged", first, second]);
        check(&s, TEST, &s.path("both"), "flat", &[]);
        check_mount(&s, TEST, &s.path("both"), "flat");
    }
    // All data is copied on request, and there is no device then.
    ok(&s, "mkfs.erofs --clean=data --quiet copied l1.img l2.img");
    check(&s, TEST, &s.path("both"), "copied", &[]);
}

#[test]
fn contents_that_no_index_can_refer_to_are_refused() {
    let s = sandbox();
    layers(&s);
    ok(&s, "mkfs.erofs --tar=f --aufs --quiet -Enoinline_data l2.img l2.tar");
    for options in ["-zlz4", "-x2"] {
        ok(&s, &format!("mkfs.erofs --tar=f --quiet {options} l1.img l1.tar"));
        run(&s, "mkfs.erofs --quiet merged l1.img l2.img", None).fails(1, "-Enoinline_data");
        assert!(!s.path("merged").exists());
    }
    run(&s, "mkfs.erofs -zlz4 merged l2.img l2.img", None).fails(1, "leave out -z");
    run(&s, "mkfs.erofs --tar merged l1.tar l2.tar", None).fails(1, "merges archives");
    run(&s, "mkfs.erofs --quiet merged l2.img l1.tar", None).fails(1, "'l1.tar' is an archive");
    assert!(Command::new("gzip").arg(s.path("l1.tar")).status().unwrap().success());
    run(&s, "mkfs.erofs --quiet merged l2.img l1.tar.gz", None).fails(1, "'l1.tar.gz' is compressed");
    assert!(!s.path("merged").exists());
}

#[test]
fn a_layer_may_be_longer_than_its_superblock_says() {
    const TEST: &str = "a_layer_may_be_longer_than_its_superblock_says";
    let s = sandbox();
    layers(&s);
    for layer in ["l1", "l2"] {
        ok(&s, &format!("mkfs.erofs --tar=f --aufs --quiet -Enoinline_data {layer}.img {layer}.tar"));
    }
    let first = fs::OpenOptions::new().append(true).open(s.path("l1.img")).unwrap();
    first.set_len(first.metadata().unwrap().len() + 3 * 4096).unwrap();
    ok(&s, "mkfs.erofs --aufs --quiet merged l1.img l2.img");
    check(&s, TEST, &s.path("both"), "merged", &["l1.img", "l2.img"]);
    joined(&s, "flat", &["merged", "l1.img", "l2.img"]);
    check(&s, TEST, &s.path("both"), "flat", &[]);
    check_mount(&s, TEST, &s.path("both"), "flat");
}

/// In one file with the image, the kernel would read other bytes of the layers behind it, without an error.
#[test]
fn a_layer_whose_last_block_is_not_whole_is_noted() {
    const TEST: &str = "a_layer_whose_last_block_is_not_whole_is_noted";
    let s = sandbox();
    layers(&s);
    for layer in ["l1", "l2"] {
        ok(&s, &format!("mkfs.erofs --tar=f --aufs --quiet -Enoinline_data {layer}.img {layer}.tar"));
    }
    let append = |image: &str, bytes: u64| {
        let file = fs::OpenOptions::new().append(true).open(s.path(image)).unwrap();
        file.set_len(file.metadata().unwrap().len() + bytes).unwrap();
    };
    let merge = || {
        let ran = run(&s, "mkfs.erofs --aufs merged l1.img l2.img", None);
        assert_eq!(ran.code, 0, "{ran:?}");
        joined(&s, "flat", &["merged", "l1.img", "l2.img"]);
        check(&s, TEST, &s.path("both"), "merged", &["l1.img", "l2.img"]);
        ran.err
    };
    for image in ["l1.img", "l2.img"] {
        assert!(!merge().contains("whole block"));
        append(image, 512);
        let err = merge();
        let noted = ["l1.img", "l2.img"].map(|name| err.contains(&format!("'{name}' does not end with")));
        assert_eq!(noted, [image == "l1.img", image == "l2.img"], "{err}");
        assert!(err.contains("truncate -s %4096"), "{err}");
        run(&s, "fsck.erofs flat", None).fails(1, "device");
        append(image, 4096 - 512);
    }
    assert!(!merge().contains("whole block"));
    check(&s, TEST, &s.path("both"), "flat", &[]);
    check_mount(&s, TEST, &s.path("both"), "flat");
}

#[test]
fn an_index_has_the_uuid_of_its_devices_too() {
    let s = sandbox();
    layers(&s);
    let uuid = |image: &str| fs::read(s.path(image)).unwrap()[1024 + 48..1024 + 64].to_vec();
    for (name, further) in [("one", 0), ("other", 512)] {
        let archive = fs::OpenOptions::new().append(true).open(s.path("l1.tar")).unwrap();
        archive.set_len(archive.metadata().unwrap().len() + further).unwrap();
        ok(&s, &format!("mkfs.erofs --tar=i --quiet {name} l1.tar"));
    }
    assert_ne!(uuid("one"), uuid("other"));
}
