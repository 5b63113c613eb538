//! `image digest`, and `--digest` of all commands that read images.

use crate::image_mount::MountSandbox;
use crate::support::Sandbox;
use pagefold_sys::{fusedev, rundir};
use pagefold_testkit::skipped;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Exit codes of the program.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const DAMAGED: i32 = 6;

/// Byte `n` of the file /noise, which is text.
fn noise(n: u64) -> u8 {
    b'!' + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 % 90
}

/// An image with a compressed file and an uncompressed one.
pub fn image(s: &Sandbox) -> PathBuf {
    let (tree, image) = (s.path("tree"), s.path("image"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("text"), "a line of text\n".repeat(50_000)).unwrap();
    let noise: Vec<u8> = (0..300_000).map(noise).collect();
    fs::write(tree.join("noise"), &noise).unwrap();
    s.ok(&format!(
        "-q image build {} {} --compression none --rule text=zstd:3",
        tree.display(),
        image.display()
    ));
    image
}

/// Changes a bit of a byte of the image that a file's contents are in, and returns the number of its block.
fn flip_contents(image: &std::path::Path) -> u64 {
    let bytes = fs::read(image).unwrap();
    let noise: Vec<u8> = (0..64).map(noise).collect();
    let at = bytes.windows(noise.len()).position(|window| window == noise).unwrap() as u64 + 200_000;
    let file = fs::File::options().write(true).open(image).unwrap();
    file.write_all_at(&[bytes[at as usize] ^ 1], at).unwrap();
    at / 4096
}

#[test]
fn a_digest_is_printed_and_its_tree_written_beside_the_image() {
    let s = Sandbox::new();
    let path = image(&s);
    let digest = s.ok(&format!("image digest {}", path.display()));
    assert!(digest.starts_with("sha256:") && digest.trim().len() == 71, "{digest}");
    let tree = fs::read(s.path("image.verity")).unwrap();
    let len = fs::metadata(&path).unwrap().len();
    assert_eq!(
        tree.len() as u64,
        len.div_ceil(4096).div_ceil(128) * 4096 + if len > 1 << 19 { 4096 } else { 0 }
    );

    let (other, descriptor) = (s.path("other"), s.path("descriptor"));
    let files =
        format!("--out-merkle-tree {} --out-descriptor {} -j 1", other.display(), descriptor.display());
    let json = s.ok(&format!("image digest {} {files} --json", path.display()));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["digest"], digest.trim());
    assert_eq!((&json["image_bytes"], &json["merkle_tree_bytes"]), (&len.into(), &tree.len().into()));
    assert_eq!(fs::read(other).unwrap(), tree);
    assert_eq!(fs::read(descriptor).unwrap().len(), 256);

    fs::remove_file(s.path("image.verity")).unwrap();
    let salted = s.ok(&format!("image digest {} --no-merkle-tree --salt 00ff", path.display()));
    assert!(salted != digest && !s.path("image.verity").exists());
    s.run(&format!("image digest {} --salt xx", path.display())).fails(USAGE, "hexadecimal");
    s.run(&format!("image digest {}", s.path("nothing").display())).fails(NOT_FOUND, "nothing");
    assert!(!s.path("nothing.verity").exists());
    s.run(&format!("image digest {} --out-merkle-tree -", path.display())).fails(USAGE, "name a file");
}

#[test]
fn every_command_verifies_what_it_reads() {
    let s = Sandbox::new();
    let path = image(&s);
    let digest = s.ok(&format!("image digest {} --salt 5a", path.display()));
    let verified =
        |words: &str| words.replace("IMAGE", &format!("{} --salt 5a --digest {digest}", path.display()));
    let (out, built) = (s.path("out").display().to_string(), s.path("built").display().to_string());
    let commands = [
        "image check IMAGE".to_string(),
        "image cat IMAGE /noise".to_string(),
        "image tar IMAGE -o /dev/null".to_string(),
        format!("-q image extract IMAGE {out}"),
        format!("-q image build IMAGE {built}"),
    ];
    let all = commands.iter().map(String::as_str).chain(["image show IMAGE", "image ls -l IMAGE"]);
    for words in all.clone() {
        s.ok(&verified(words));
    }
    // Only what is read is verified: the metadata are still whole.
    let block = flip_contents(&path);
    s.ok(&verified("image ls -l IMAGE"));
    fs::remove_dir_all(&out).unwrap();
    for words in &commands {
        let ran = s.run(&verified(words));
        ran.fails(DAMAGED, "");
        assert!(
            ran.err.contains(&format!("block {block} (")) || ran.out.contains(&format!("block {block} (")),
            "{ran:?}"
        );
        // Without a digest, nobody notices.
        let unverified =
            words.replace("IMAGE", &path.display().to_string()).replace(&out, &format!("{out}2"));
        assert_eq!(s.run(&unverified).code, 0, "{unverified}");
        let _ = fs::remove_dir_all(format!("{out}2"));
    }
}

#[test]
fn wrong_digests_and_trees_are_refused() {
    let s = Sandbox::new();
    let path = image(&s);
    let shown = path.display();
    let digest = s.ok(&format!("image digest {shown}"));
    let digest = digest.trim();
    let wrong = digest.replace(&digest[20..24], if &digest[20..24] == "0000" { "1111" } else { "0000" });
    s.run(&format!("image ls {shown} --digest {wrong}")).fails(DAMAGED, &format!("the digest is {digest}"));
    s.run(&format!("image ls {shown} --digest {digest} --salt 00")).fails(DAMAGED, "another salt");
    s.run(&format!("image ls {shown} --digest sha256:12")).fails(USAGE, "64 hexadecimal digits");
    s.run(&format!("image ls {shown} --salt 00")).fails(USAGE, "--digest");
    let two = format!("image ls {shown} --digest {digest} --digest {digest}");
    s.run(&two).fails(USAGE, "2 digests for an image and 0 devices");
    let kernel = format!("image mount {shown} {} --kernel --digest {digest}", s.path("tree").display());
    s.run(&kernel).fails(USAGE, "cannot be used with");

    let tree = s.path("image.verity");
    let bytes = fs::read(&tree).unwrap();
    fs::write(&tree, &bytes[..bytes.len() - 1]).unwrap();
    s.run(&format!("image ls {shown} --digest {digest}")).fails(DAMAGED, "the Merkle tree has");
    fs::remove_file(&tree).unwrap();
    s.run(&format!("image ls {shown} --digest {digest}"))
        .fails(NOT_FOUND, "'pagefold image digest' makes the Merkle tree");
    fs::write(s.path("moved"), &bytes).unwrap();
    s.ok(&format!("image ls {shown} --digest {digest} --merkle-tree {}", s.path("moved").display()));
}

#[test]
fn a_mount_with_a_digest_returns_only_bytes_that_belong_to_it() {
    let Some(s) = mount_sandbox("a_mount_with_a_digest_returns_only_bytes_that_belong_to_it") else { return };
    let path = &s.image;
    let digest = s.ok(&format!("image digest {}", path.display()));
    let mount = format!("image mount {} {} --digest {digest}", path.display(), s.at.display());
    s.ok(&mount);
    let whole = fs::read(s.at.join("noise")).unwrap();
    assert_eq!(whole.len(), 300_000);
    s.ok(&s.words("unmount", ""));

    flip_contents(path);
    s.ok(&mount);
    assert_eq!(fs::read(s.at.join("text")).unwrap().len(), 750_000);
    assert_eq!(fs::read(s.at.join("noise")).unwrap_err().raw_os_error(), Some(libc::EIO));
    let mut beginning = vec![0; 100_000];
    fs::File::open(s.at.join("noise")).unwrap().read_exact_at(&mut beginning, 0).unwrap();
    assert!(beginning == whole[..100_000]);
    s.ok(&s.words("unmount", ""));
    let (code, said) = s.run(&mount.replace(&digest[7..71], &"0".repeat(64)));
    assert!(code == DAMAGED && said.contains("the digest is sha256:"), "{said}");
    s.assert_nothing_left();
}

/// A sandbox with a folder to mount the image on; `None`, after printing the reason, if images cannot be mounted here.
pub fn mount_sandbox(test: &str) -> Option<MountSandbox> {
    if rundir::effective_uid() != 0 || fusedev::open().is_err() {
        skipped!("{test}: needs root and /dev/fuse");
        return None;
    }
    let inner = Sandbox::new();
    let (image, at) = (image(&inner), inner.path("at"));
    fs::create_dir(&at).unwrap();
    Some(MountSandbox { inner, image, at })
}
