//! Disks and mounts of images whose FUSE requests come through io_uring.
//!
//! The tests set the kernel's parameter, and restore it. Each mount on the machine that begins meanwhile uses rings if
//! it can, so these tests are a separate program.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use pagefold_page::AlignedBytes;
use pagefold_sys::fusering::ENABLED;
use pagefold_testkit::parameter::Parameter;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use support::{Sandbox, no_loop, sh, wait_until};

/// Sets the kernel's parameter, or prints that `test` is skipped.
fn offer_rings(test: &str, value: &str) -> Option<Parameter> {
    let why = match (Parameter::set(ENABLED.as_ref(), value), no_loop()) {
        (Ok(parameter), None) => return Some(parameter),
        (Ok(_), Some(why)) => why.to_string(),
        (Err(e), _) => format!("the kernel has no FUSE over io_uring that can be set: {e}"),
    };
    pagefold_testkit::skipped!("{test}: {why}");
    None
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

/// Makes a tree, an image of it, and the path to mount it at.
fn tree_and_image(s: &Sandbox) -> (PathBuf, PathBuf, PathBuf) {
    let (tree, image) = (tree(s), s.path("image"));
    s.ok(&format!("image build {} {}", tree.display(), image.display()));
    (tree, image, s.path("at"))
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

/// The longest request of a block device, KiB.
fn max_request_kib(device: &str) -> u64 {
    let name = Path::new(device.trim_end()).file_name().unwrap().to_str().unwrap();
    let text = fs::read_to_string(format!("/sys/block/{name}/queue/max_sectors_kb")).unwrap();
    text.trim().parse().unwrap()
}

#[test]
fn an_export_whose_rings_have_ended_is_reported() {
    let Some(_parameter) = offer_rings("an_export_whose_rings_have_ended_is_reported", "Y") else { return };
    let s = Sandbox::new();
    let device = s.ok("disk create --size 64M --name x --export loop --fuse-uring on");
    assert_eq!(s.show("x")["transport"], "io_uring");
    s.abort_export("x");
    s.assert_export_ended("x");
    assert!(fs::read(device.trim_end()).is_err());
    s.ok("disk remove x");
    assert_eq!(s.left(), Vec::<String>::new());
}

/// A server that has dropped its connection still answers commands. An unmount does not wait for it, so that even `--force`
/// leaves the unmount to the user, and the disk goes after it.
#[test]
fn a_mounted_disk_whose_connection_was_dropped_is_removed_after_the_unmount() {
    let test = "a_mounted_disk_whose_connection_was_dropped_is_removed_after_the_unmount";
    let Some(_parameter) = offer_rings(test, "Y") else { return };
    for uring in ["on", "off"] {
        let s = Sandbox::new();
        let device = s.ok(&format!("disk create --size 64M --name x --export loop --fuse-uring {uring}"));
        let mount = s.path("mnt");
        fs::create_dir(&mount).unwrap();
        sh("mkfs.ext4", &["-q", device.trim_end()]);
        sh("mount", &[device.trim_end(), mount.to_str().unwrap()]);
        fs::write(mount.join("file"), "not yet on the disk\n".repeat(10_000)).unwrap();
        s.abort_export("x");
        s.assert_export_ended("x");
        let synced = File::open(&mount).and_then(|folder| rustix::fs::syncfs(&folder).map_err(Into::into));
        assert!(synced.is_err());
        for words in ["disk remove x", "disk remove x --force"] {
            s.run(words).fails(4, &format!("umount '{}'", mount.display()));
            assert_eq!(s.show("x")["state"], "export_ended");
        }
        // It does not wait for requests: each of them fails.
        sh("umount", &[mount.to_str().unwrap()]);
        s.ok("disk remove x --force");
        assert_eq!(s.left(), Vec::<String>::new());
    }
}

#[test]
fn disks_and_images_use_rings_on_request() {
    let test = "disks_and_images_use_rings_on_request";
    let Some(parameter) = offer_rings(test, "Y") else { return };
    let s = Sandbox::new();
    let (tree, image, at) = tree_and_image(&s);
    let device = s.ok("disk create --size 64M --name rings --export loop --fuse-uring on");
    let other = s.ok("disk create --size 64M --name device --export loop");
    // Requests of rings would be lost with the server.
    let (rings, device_only) = (s.show("rings"), s.show("device"));
    assert_eq!((&rings["transport"], &device_only["transport"]), (&"io_uring".into(), &"/dev/fuse".into()));
    let why = rings["keeper"]["without_keeper"].as_str().unwrap();
    assert!(why.contains("through rings"), "{why}");
    mount(&s, &image, &at, "--fuse-uring on");
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
    // Requests of rings would be lost with the server of a mount.
    for (options, transport) in [("", "/dev/fuse"), ("--fuse-uring on", "io_uring")] {
        mount(&s, &image, &at, options);
        let stats = stats(&s, &at);
        assert_eq!(stats["transport"], transport);
        let why = stats["keeper"]["without_keeper"].as_str();
        assert!(transport == "/dev/fuse" || why.unwrap().contains("through rings"), "{why:?}");
        s.ok(&format!("image unmount {}", at.display()));
    }
    s.ok("disk remove rings device");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn rings_that_are_wanted_and_not_offered_are_a_warning() {
    let test = "rings_that_are_wanted_and_not_offered_are_a_warning";
    let Some(_parameter) = offer_rings(test, "N") else { return };
    let s = Sandbox::new();
    let (tree, image, at) = tree_and_image(&s);
    let wanted = s.run("disk create --size 64M --name wanted --export loop --fuse-uring on");
    let automatic = s.run("disk create --size 64M --name automatic --export loop");
    let device = &wanted.out;
    // Both say whether the disk is safe as swap, which rings have nothing to do with.
    for (name, created) in [("wanted", &wanted), ("automatic", &automatic)] {
        let unsafe_swap = s.show(name)["warnings"].to_string().contains("swapping to this disk is not safe");
        assert!(created.code == 0 && created.err.contains("not safe as swap") == unsafe_swap, "{created:?}");
        let says = |text: &str| created.err.contains(text);
        let of_rings =
            (says("not io_uring: the kernel does not offer"), says(&format!("echo Y > {ENABLED}")));
        let is_wanted = name == "wanted";
        assert_eq!(of_rings, (is_wanted, is_wanted), "{created:?}");
    }
    let warning = |name: &str| s.show(name)["warnings"].to_string();
    assert!(warning("wanted").contains("enable_uring"), "{}", warning("wanted"));
    assert!(!warning("automatic").contains("enable_uring"), "{}", warning("automatic"));
    for name in ["wanted", "automatic"] {
        assert_eq!(s.show(name)["transport"], "/dev/fuse");
    }
    use_disk(&s, device.trim_end(), &tree);
    let notes = mount(&s, &image, &at, "--fuse-uring on");
    assert!(notes.contains("root can allow it: echo Y > "), "{notes}");
    assert_eq!(stats(&s, &at)["transport"], "/dev/fuse");
    // The reason is kept, for those who did not see the note.
    let reason = stats(&s, &at)["without_rings"].as_str().unwrap().to_string();
    assert!(reason.contains("enable_uring"), "{reason}");
    let text = s.ok(&format!("image stats {}", at.display()));
    assert!(text.contains(&format!("{:<20}{reason}", "warning")) && !text.contains("\nrings"), "{text}");
    sh("diff", &["-r", tree.to_str().unwrap(), at.to_str().unwrap()]);
    s.ok(&format!("image unmount {}", at.display()));
    s.ok("disk remove wanted automatic");
}

#[test]
fn buffers_of_rings_are_part_of_the_memory_of_a_mount() {
    let test = "buffers_of_rings_are_part_of_the_memory_of_a_mount";
    let Some(_parameter) = offer_rings(test, "Y") else { return };
    let s = Sandbox::new();
    let (tree, image, at) = tree_and_image(&s);
    for memory in ["2M", "3M", "4M", "8M", "64M"] {
        mount(&s, &image, &at, &format!("--memory {memory} --fuse-uring on"));
        sh("diff", &["-r", tree.to_str().unwrap(), at.to_str().unwrap()]);
        let stats = stats(&s, &at);
        let bytes = |name: &str| stats["budget"][name].as_u64().unwrap();
        assert!(bytes("peak_bytes") <= bytes("limit_bytes"), "{memory}: {stats}");
        println!("{memory}: {} {}", stats["transport"], stats["max_read_bytes"]);
        if memory == "64M" {
            assert_eq!(stats["transport"], "io_uring");
            assert!(stats["without_rings"].is_null(), "{stats}");
            assert_eq!(stats["rings"]["max_request_bytes"], stats["max_read_bytes"]);
            let text = s.ok(&format!("image stats {}", at.display()));
            assert!(text.contains("of buffers, part of --memory, for requests of at most"), "{text}");
        }
        s.ok(&format!("image unmount {}", at.display()));
    }
}

#[test]
fn rings_of_a_disk_with_little_memory_are_small() {
    let test = "rings_of_a_disk_with_little_memory_are_small";
    let Some(_parameter) = offer_rings(test, "Y") else { return };
    let s = Sandbox::new();
    let tree = tree(&s);
    let queues = pagefold_sys::fusering::queues().unwrap() as u64;
    // The rings' buffers take at most an eighth of the memory for pages. A queue has 512 KiB here.
    let limit = queues * (4 << 20);
    let device =
        s.ok(&format!("disk create --size 64M --name small --export loop --fuse-uring on --memory {limit}"));
    let shown = s.show("small");
    assert_eq!(shown["transport"], "io_uring");
    let rings = |field: &str| shown["memory"]["rings"][field].as_u64().unwrap();
    assert!(rings("buffer_bytes") <= limit / 8, "{shown}");
    assert!(rings("max_request_bytes") < 1 << 20, "{shown}");
    // They are a part of the memory of the disk.
    let pages = |shown: &serde_json::Value| shown["memory"]["limit_bytes"].as_u64();
    assert_eq!(pages(&shown), Some(limit - rings("buffer_bytes")), "{shown}");
    assert_eq!(shown["attributes"]["mem_limit"], pages(&shown).unwrap().to_string());
    s.ok("disk set small mem_limit=8M");
    assert_eq!(pages(&s.show("small")), Some(8 << 20));
    assert_eq!(max_request_kib(&device) << 10, rings("max_request_bytes"));
    let text = s.ok("disk show small");
    assert!(text.contains("of buffers, part of --memory, for requests of at most"), "{text}");
    s.ok("disk create --size 64M --name large --export loop --fuse-uring on --memory 8G");
    assert_eq!(s.show("large")["memory"]["rings"]["max_request_bytes"], 1 << 20);
    // No space for the shortest requests.
    s.ok("disk create --size 64M --name tiny --export loop --memory 256K --fuse-uring on");
    let shown = s.show("tiny");
    assert_eq!((&shown["transport"], &shown["memory"]["rings"]), (&"/dev/fuse".into(), &().into()));
    assert!(shown["warnings"].to_string().contains("too much of the disk's memory"), "{shown}");
    assert_eq!(pages(&shown), Some(256 << 10));
    s.ok("disk create --size 64M --name unlimited --export loop --memory 0 --fuse-uring on");
    assert_eq!(pages(&s.show("unlimited")), None);
    if limit >= 8 << 20 {
        use_disk(&s, device.trim_end(), &tree);
    }
    s.ok("disk remove small large tiny unlimited");
}

/// A sandbox may forbid io_uring although the kernel has it, or only its use: then `/dev/fuse` serves, and the disk says
/// why.
#[test]
fn where_a_sandbox_forbids_rings_the_device_serves() {
    let test = "where_a_sandbox_forbids_rings_the_device_serves";
    let Some(_parameter) = offer_rings(test, "Y") else { return };
    let s = Sandbox::new();
    let tree = tree(&s);
    let small = (pagefold_sys::fusering::queues().unwrap() as u64 * (4 << 20)).max(16 << 20);
    for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter] {
        let create = || {
            pagefold_testkit::seccomp::forbid(call);
            s.ok("disk create --size 64M --name automatic --export loop");
            s.ok(&format!("disk create --size 64M --name x --export loop --fuse-uring on --memory {small}"))
        };
        let device = std::thread::scope(|scope| scope.spawn(create).join().unwrap());
        let automatic = s.show("automatic");
        assert_eq!(automatic["transport"], "/dev/fuse");
        assert!(!automatic["warnings"].to_string().contains("io_uring"), "{automatic}");
        let shown = s.show("x");
        assert_eq!(shown["transport"], "/dev/fuse");
        let warnings = shown["warnings"].to_string();
        assert!(warnings.contains("io_uring") && warnings.contains("not permitted"), "{warnings}");
        // Requests are as long as without rings, although rings would have had short ones.
        assert_eq!(max_request_kib(&device), 1024);
        use_disk(&s, device.trim_end(), &tree);
        s.ok("disk remove x automatic");
    }
}

/// With rings, requests wait behind those of their CPU that wait for the medium.
#[test]
fn a_disk_with_a_backing_has_rings_on_request_only() {
    let Some(_parameter) = offer_rings("a_disk_with_a_backing_has_rings_on_request_only", "Y") else {
        return;
    };
    let s = Sandbox::new();
    for (options, transport) in
        [("", "/dev/fuse"), ("--fuse-uring auto", "/dev/fuse"), ("--fuse-uring on", "io_uring")]
    {
        let backing = s.path("backing");
        File::create(&backing).unwrap().set_len(64 << 20).unwrap();
        let create = format!("disk create --size 64M --name x --export loop --backing {}", backing.display());
        s.ok(&format!("{create} {options}"));
        let shown = s.show("x");
        assert_eq!(shown["transport"], transport, "{options}");
        assert!(!shown["warnings"].to_string().contains("io_uring"), "{shown}");
        s.ok("disk remove x");
        fs::remove_file(&backing).unwrap();
    }
}

#[test]
fn requests_fail_at_once_when_the_server_is_killed() {
    let test = "requests_fail_at_once_when_the_server_is_killed";
    let Some(_parameter) = offer_rings(test, "Y") else { return };
    for uring in ["on", "off"] {
        let s = Sandbox::new();
        let device = s.ok(&format!("disk create --size 64M --name x --export loop --fuse-uring {uring}"));
        let device = Path::new(device.trim_end());
        let served = AtomicU64::new(0);
        // Readers in the middle of requests end with an error, and do not wait.
        let read = |first: u64| {
            let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(device).unwrap();
            let mut page = AlignedBytes::new(4096, 0);
            let reads = (0u64..).map(|i| file.read_exact_at(&mut page, (first + i) % 16384 * 4096));
            let error = reads.inspect(|_| _ = served.fetch_add(1, Ordering::Relaxed)).find_map(Result::err);
            error.unwrap().raw_os_error()
        };
        let read = &read;
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..4).map(|first| scope.spawn(move || read(first * 1000))).collect();
            wait_until("requests are served", || served.load(Ordering::Relaxed) > 1000);
            s.kill_disk("x");
            let killed = std::time::Instant::now();
            readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), Some(libc::EIO)));
            // A time limit of the kernel's block layer would be half a minute.
            assert!(killed.elapsed() < std::time::Duration::from_secs(15));
        });
        let list = s.run("disk list");
        assert!(list.code == 0 && list.err.contains("cleaned up"), "{list:?}");
        assert_eq!(s.left(), Vec::<String>::new());
    }
}
