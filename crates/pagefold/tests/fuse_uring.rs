//! Disks and mounts of images whose FUSE requests come through io_uring.
//!
//! The tests set the kernel's parameter, and restore it. Each mount on the machine that begins meanwhile uses rings if
//! it can, so these tests are a separate program.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use pagefold_sys::fusering::ENABLED;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use support::{Sandbox, no_loop, sh};

static PARAMETER: Mutex<()> = Mutex::new(());

/// The kernel's parameter, whose old value comes back when this is dropped.
struct Parameter {
    before: String,
    _lock: MutexGuard<'static, ()>,
}

impl Parameter {
    /// Sets the parameter, or prints that `test` is skipped.
    fn set(test: &str, value: &str) -> Option<Self> {
        let lock = PARAMETER.lock().unwrap_or_else(PoisonError::into_inner);
        let set = fs::read_to_string(ENABLED).and_then(|before| fs::write(ENABLED, value).map(|()| before));
        match (set, no_loop()) {
            (Ok(before), None) => Some(Parameter { before, _lock: lock }),
            (Ok(before), Some(why)) => {
                drop(Parameter { before, _lock: lock });
                pagefold_testkit::skipped!("{test}: {why}");
                None
            }
            (Err(e), _) => {
                pagefold_testkit::skipped!(
                    "{test}: the kernel has no FUSE over io_uring that can be set: {e}"
                );
                None
            }
        }
    }

    fn change(&self, value: &str) {
        fs::write(ENABLED, value).unwrap();
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        fs::write(ENABLED, self.before.trim()).unwrap();
    }
}

/// Makes a file system on a disk, and copies a folder to it and back.
fn use_disk(s: &Sandbox, device: &str, tree: &Path) {
    let mount = s.path("disk-mount");
    fs::create_dir_all(&mount).unwrap();
    sh("mkfs.ext4", &["-q", "-F", device]);
    sh("mount", &[device, mount.to_str().unwrap()]);
    let copy = mount.join("tree");
    sh("cp", &["-a", tree.to_str().unwrap(), copy.to_str().unwrap()]);
    sh("umount", &[mount.to_str().unwrap()]);
    sh("e2fsck", &["-fn", device]);
    sh("mount", &[device, mount.to_str().unwrap()]);
    sh("diff", &["-r", tree.to_str().unwrap(), copy.to_str().unwrap()]);
    sh("umount", &[mount.to_str().unwrap()]);
}

/// A folder with small files, a long one that compresses, and one that does not.
fn tree(s: &Sandbox) -> PathBuf {
    let tree = s.path("tree");
    for folder in 0..4 {
        let folder = tree.join(format!("folder-{folder}"));
        fs::create_dir_all(&folder).unwrap();
        (0..50).for_each(|file| fs::write(folder.join(format!("file-{file}")), format!("{file}\n")).unwrap());
    }
    fs::write(tree.join("long"), "a line that compresses well\n".repeat(100_000)).unwrap();
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u8
    };
    fs::write(tree.join("noise"), (0..3_000_000).map(|_| noise()).collect::<Vec<u8>>()).unwrap();
    std::os::unix::fs::symlink("long", tree.join("link")).unwrap();
    tree
}

/// Mounts an image with `options`. Returns the notes of the command.
fn mount(s: &Sandbox, image: &Path, at: &Path, options: &str) -> String {
    fs::create_dir_all(at).unwrap();
    let mounted = s.run(&format!("image mount {} {} {options}", image.display(), at.display()));
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    mounted.err
}

fn stats(s: &Sandbox, at: &Path) -> serde_json::Value {
    serde_json::from_str(&s.ok(&format!("image stats {} --json", at.display()))).unwrap()
}

#[test]
fn disks_and_images_use_rings_where_the_kernel_offers_them() {
    let test = "disks_and_images_use_rings_where_the_kernel_offers_them";
    let Some(parameter) = Parameter::set(test, "Y") else { return };
    let s = Sandbox::new();
    let tree = tree(&s);
    let (image, at) = (s.path("image"), s.path("at"));
    s.ok(&format!("image build {} {}", tree.display(), image.display()));
    let device = s.ok("disk create --size 64M --name rings --export loop");
    let other = s.ok("disk create --size 64M --name device --export loop --fuse-uring off");
    assert_eq!(s.show("rings")["transport"], "io_uring");
    assert_eq!(s.show("device")["transport"], "/dev/fuse");
    mount(&s, &image, &at, "");
    assert_eq!(stats(&s, &at)["transport"], "io_uring");
    for value in ["Y", "N"] {
        // A mount keeps its transport, whatever the parameter says later.
        parameter.change(value);
        use_disk(&s, device.trim_end(), &tree);
        use_disk(&s, other.trim_end(), &tree);
        sh("diff", &["-r", tree.to_str().unwrap(), at.to_str().unwrap()]);
        assert_eq!(fs::read_link(at.join("link")).unwrap(), Path::new("long"));
    }
    assert_eq!(s.show("rings")["transport"], "io_uring");
    s.ok(&format!("image unmount {}", at.display()));
    parameter.change("Y");
    mount(&s, &image, &at, "--fuse-uring off");
    assert_eq!(stats(&s, &at)["transport"], "/dev/fuse");
    s.ok(&format!("image unmount {}", at.display()));
    s.ok("disk remove rings device");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn rings_that_are_wanted_and_not_offered_are_a_warning() {
    let test = "rings_that_are_wanted_and_not_offered_are_a_warning";
    let Some(_parameter) = Parameter::set(test, "N") else { return };
    let s = Sandbox::new();
    let tree = tree(&s);
    let (image, at) = (s.path("image"), s.path("at"));
    s.ok(&format!("image build {} {}", tree.display(), image.display()));
    let device = s.ok("disk create --size 64M --name wanted --export loop --fuse-uring on");
    s.ok("disk create --size 64M --name automatic --export loop");
    let warning = |name: &str| s.show(name)["warnings"].to_string();
    assert!(warning("wanted").contains("enable_uring"), "{}", warning("wanted"));
    assert!(!warning("automatic").contains("enable_uring"), "{}", warning("automatic"));
    for name in ["wanted", "automatic"] {
        assert_eq!(s.show(name)["transport"], "/dev/fuse");
    }
    use_disk(&s, device.trim_end(), &tree);
    let notes = mount(&s, &image, &at, "--fuse-uring on");
    assert!(notes.contains("enable_uring"), "{notes}");
    assert_eq!(stats(&s, &at)["transport"], "/dev/fuse");
    sh("diff", &["-r", tree.to_str().unwrap(), at.to_str().unwrap()]);
    s.ok(&format!("image unmount {}", at.display()));
    s.ok("disk remove wanted automatic");
}

#[test]
fn buffers_of_rings_are_part_of_the_memory_of_a_mount() {
    let test = "buffers_of_rings_are_part_of_the_memory_of_a_mount";
    let Some(_parameter) = Parameter::set(test, "Y") else { return };
    let s = Sandbox::new();
    let tree = tree(&s);
    let (image, at) = (s.path("image"), s.path("at"));
    s.ok(&format!("image build {} {}", tree.display(), image.display()));
    for memory in ["2M", "3M", "4M", "8M", "64M"] {
        mount(&s, &image, &at, &format!("--memory {memory}"));
        sh("diff", &["-r", tree.to_str().unwrap(), at.to_str().unwrap()]);
        let stats = stats(&s, &at);
        let bytes = |name: &str| stats["budget"][name].as_u64().unwrap();
        assert!(bytes("peak_bytes") <= bytes("limit_bytes"), "{memory}: {stats}");
        println!("{memory}: {} {}", stats["transport"], stats["max_read_bytes"]);
        if memory == "64M" {
            assert_eq!(stats["transport"], "io_uring");
        }
        s.ok(&format!("image unmount {}", at.display()));
    }
}
