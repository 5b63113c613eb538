//! `--offset`: images inside larger files.

use crate::image_mount::MountSandbox;
use crate::image_remote::{PATH, serving};
use crate::support::{Sandbox, kill, wait_until};
use std::fs;
use std::path::PathBuf;

/// Bytes in front of the image: no multiple of anything, and of a sector, a block.
const OFFSETS: [usize; 3] = [12_345, 512, 4096];

/// A file with the image at each offset, with other bytes behind it, and the image.
fn containers(s: &Sandbox) -> (Vec<(usize, PathBuf)>, PathBuf) {
    let tree = s.path("a-tree");
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("d/file"), "contents\n".repeat(9000)).unwrap();
    fs::write(tree.join("short"), "short\n").unwrap();
    let image = s.path("plain");
    s.ok(&format!("image build -q -z lz4 {} {}", tree.display(), image.display()));
    let bytes = fs::read(&image).unwrap();
    let made = OFFSETS.map(|offset| {
        let path = s.path(&format!("in-{offset}"));
        let before = pagefold_testkit::noise(1, offset);
        fs::write(&path, [&before[..], &bytes, &before[..offset.min(700)]].concat()).unwrap();
        (offset, path)
    });
    (made.into(), image)
}

#[test]
fn commands_read_an_image_behind_other_bytes() {
    let s = Sandbox::new();
    let (containers, image) = containers(&s);
    let image = image.display();
    for (offset, file) in containers {
        let file = file.display();
        let args = format!("--offset {offset} {file}");
        for verb in ["ls -R", "cat", "check --strict", "usage"] {
            if s.run(&format!("image {verb} --help")).code != 0 {
                continue;
            }
            let path = if verb == "cat" { " /d/file" } else { "" };
            let ran = s.ok(&format!("image {verb} {args}{path}"));
            let plain = s.ok(&format!("image {verb} {image}{path}"));
            assert!(
                ran.replace(&file.to_string(), &image.to_string()) == plain || verb == "check --strict",
                "{ran}"
            );
        }
        let shown: serde_json::Value =
            serde_json::from_str(&s.ok(&format!("image show --json {args}"))).unwrap();
        assert_eq!(shown["offset_bytes"], offset);
        let text = s.ok(&format!("image show {args}"));
        assert!(text.contains(&format!("byte {offset} of the file")), "{text}");
        let [to, tar, copy] = ["to", "tar", "copy"].map(|name| s.path(name));
        s.ok(&format!("image extract -q {args} {}", to.display()));
        assert_eq!(fs::read_to_string(to.join("short")).unwrap(), "short\n");
        s.ok(&format!("image tar {args} -o {}", tar.display()));
        assert!(fs::metadata(&tar).unwrap().len() > 80_000);
        let built = s.path("built");
        s.ok(&format!("image build -q {args} {}", built.display()));
        let cat = |image: &str| s.ok(&format!("image cat {image} /d/file"));
        assert_eq!(cat(&built.display().to_string()), cat(&image.to_string()));
        s.ok(&format!("image copy {args} {}", copy.display()));
        assert!(fs::read(&copy).unwrap() == fs::read(file.to_string()).unwrap()[offset..]);
        // The digest is that of the bytes from there on, and verifies them.
        let tree = s.path("merkle");
        let digest = s.ok(&format!("image digest {args} --out-merkle-tree {}", tree.display()));
        assert_eq!(digest, s.ok(&format!("image digest {} --no-merkle-tree", copy.display())));
        let verified = format!("image ls --digest {} --merkle-tree {} {args}", digest.trim(), tree.display());
        s.ok(&verified);
        s.run(&verified.replace(&format!("--offset {offset}"), "--offset 0")).fails(6, "digest");
        fs::remove_dir_all(to).unwrap();
    }
    s.run(&format!("image ls --offset 1T {image}")).fails(2, "beyond the end");
    s.run(&format!("image ls --offset x {image}")).fails(2, "--offset");
    let out = s.path("out");
    for source in [s.path("").display().to_string(), format!("{image} {image}")] {
        s.run(&format!("image build --offset 512 {source} {}", out.display())).fails(2, "--offset is");
    }
    for verb in ["ls", "digest"] {
        for scheme in ["oci", "oci+http"] {
            s.run(&format!("image {verb} --offset 512 {scheme}://localhost:1/x:y")).fails(2, "registries");
        }
    }
}

#[test]
fn the_offset_of_an_image_is_found_and_named() {
    let s = Sandbox::new();
    let (containers, image) = containers(&s);
    for (offset, file) in containers {
        let file = file.display();
        let advice = format!("an EROFS image begins at byte {offset}: use --offset {offset}");
        for verb in ["ls", "check", "show"] {
            s.run(&format!("image {verb} {file}")).fails(6, &advice);
        }
        s.run(&format!("image build {file} {}", s.path("built").display())).fails(2, &advice);
        let ran = s.run(&format!("image ls --offset 1M {file}"));
        ran.fails(2, "beyond the end");
        let ran = s.run(&format!("image ls --offset 7 {file}"));
        ran.fails(6, &advice);
        ran.fails(6, "after --offset 7;");
    }
    s.run(&format!("image ls --offset 1 {}", image.display()))
        .fails(6, "begins at byte 0: leave out --offset");
    let none = s.path("none");
    fs::write(&none, vec![0xE2; 100_000]).unwrap();
    let ran = s.run(&format!("image ls {}", none.display()));
    ran.fails(6, "no superblock");
    assert!(!ran.err.contains("--offset"), "{ran:?}");
}

#[test]
fn a_mount_and_the_servers_that_follow_it_keep_the_offset() {
    let test = "a_mount_and_the_servers_that_follow_it_keep_the_offset";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let s = &sandbox.inner;
    let (containers, _) = containers(s);
    let at = sandbox.at.display();
    for (n, (offset, file)) in containers.into_iter().enumerate() {
        // The last one is read from a server of HTTP.
        let server = (n == 2).then(|| serving(&file));
        let image = server.as_ref().map_or(file.display().to_string(), |server| server.url(PATH));
        sandbox.run(&format!("image mount {image} {at}"));
        assert!(!sandbox.is_mounted());
        sandbox.ok(&format!("image mount --offset {offset} {image} {at}"));
        let read = || fs::read_to_string(sandbox.at.join("d/file")).unwrap();
        assert_eq!(read(), "contents\n".repeat(9000));
        let stats = sandbox.stats();
        assert_eq!(stats["offset_bytes"], offset);
        if stats["keeper"]["without_keeper"].is_null() {
            let pid = stats["server"]["pid"].as_i64().unwrap();
            kill(pid as i32, "KILL");
            wait_until("another server serves", || {
                let ran = s.run(&sandbox.words("stats", "--json"));
                serde_json::from_str::<serde_json::Value>(&ran.out)
                    .is_ok_and(|now| now["server"]["pid"] != pid)
            });
            assert_eq!(read(), "contents\n".repeat(9000));
            assert_eq!(sandbox.stats()["offset_bytes"], offset);
        }
        sandbox.ok(&sandbox.words("unmount", ""));
        sandbox.assert_nothing_left();
        if server.is_none() {
            // As mount(8) passes it.
            let helper = std::process::Command::new(env!("CARGO_BIN_EXE_pagefold"))
                .args([&image, &at.to_string(), "-o", &format!("ro,loop,offset={offset}")])
                .env("PAGEFOLD_RUNTIME_DIR", s.runtime())
                .output()
                .unwrap();
            assert!(helper.status.success(), "{helper:?}");
            assert_eq!(read(), "contents\n".repeat(9000));
            sandbox.ok(&sandbox.words("unmount", ""));
            let (code, said) = sandbox.run(&format!("image mount --kernel --offset {offset} {image} {at}"));
            assert!(code == 2 && said.contains("losetup"), "{said}");
        }
    }
}
