//! Confinement: images whose bytes make a decoder with a planted hole do what an attacker wishes.
//!
//! The program that tests run has the hole (the feature `planted-hole` of the codecs), the one that people get has not.

use crate::image_mount::{MountSandbox, server, wait_until};
use crate::support::Sandbox;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The length of a file with a wish: one cluster.
const FILE_BYTES: usize = 64 << 10;

/// Builds an image whose files wish, and returns it. The wish is at the beginning of the only cluster of a file, as LZ4
/// literals.
fn image_of(sandbox: &MountSandbox, wishes: &[String]) -> PathBuf {
    let tree = sandbox.inner.path("wishes");
    fs::create_dir_all(&tree).unwrap();
    for (n, wish) in wishes.iter().enumerate() {
        let mut text = planted(wish);
        text.resize(FILE_BYTES, b'.');
        fs::write(tree.join(n.to_string()), text).unwrap();
    }
    let image = sandbox.inner.path("hostile");
    let made = Command::new("mkfs.erofs").args(["-zlz4", "-C65536"]).arg(&image).arg(&tree).output();
    assert!(made.unwrap().status.success());
    image
}

/// The bytes with which the hole carries out a wish.
pub fn planted(wish: &str) -> Vec<u8> {
    let mark: String = " :ELOH DETNALP".chars().rev().collect();
    format!("{mark}{wish}\n").into_bytes()
}

/// The answers of the hole, of a program that prints or mounts.
fn answer_in(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).lines().next().unwrap_or_default().to_string()
}

/// Things that an attacker wants as root, without harm if they are granted.
pub struct Wishes {
    pub list: Vec<String>,
    _tcp: TcpListener,
    _unix: UnixListener,
}

impl Wishes {
    pub fn new(sandbox: &Sandbox) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let path = sandbox.path("socket");
        let unix = UnixListener::bind(&path).unwrap();
        let secret = sandbox.path("secret");
        fs::write(&secret, "secret").unwrap();
        fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        let point = sandbox.path("point");
        fs::create_dir(&point).unwrap();
        fs::create_dir_all(sandbox.path("wishes")).unwrap();
        let this = std::process::id();
        let list = [
            "read /etc/shadow".to_string(),
            format!("read {}", secret.display()),
            format!("write {}", secret.display()),
            format!("write {}", sandbox.path("new").display()),
            format!("chmod {}", sandbox.path("wishes").display()),
            format!("trace {this}"),
            format!("signal {this}"),
            format!("tcp {}", tcp.local_addr().unwrap()),
            format!("unix {}", path.display()),
            "exec /bin/true".to_string(),
            format!("mount {}", point.display()),
        ];
        Wishes { list: list.to_vec(), _tcp: tcp, _unix: unix }
    }
}

pub fn unmount_point(sandbox: &Sandbox) {
    let _ = rustix::mount::unmount(sandbox.path("point"), rustix::mount::UnmountFlags::DETACH);
}

#[test]
fn a_hole_in_a_decoder_of_a_mount_gives_an_attacker_nothing() {
    let test = "a_hole_in_a_decoder_of_a_mount_gives_an_attacker_nothing";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let wishes = Wishes::new(&sandbox.inner);
    let image = image_of(&sandbox, &wishes.list);
    let mount = format!("image mount {} {}", image.display(), sandbox.at.display());
    let read = |n: usize| fs::read(sandbox.at.join(n.to_string())).map(|bytes| answer_in(&bytes));

    // Without the wall, root's wishes are granted: the hole is one.
    let output = sandbox.inner.command(&mount).env("PAGEFOLD_CONFINEMENT", "off").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let stats = sandbox.stats();
    assert!(stats["confinement"]["missing"][0].as_str().unwrap().contains("PAGEFOLD_CONFINEMENT=off"));
    for (n, wish) in wishes.list.iter().enumerate() {
        let answer = read(n).unwrap();
        // Capabilities are gone even so: it cannot mount, nor trace a process that has some.
        let needs_capability = wish.starts_with("mount") || wish.starts_with("trace");
        assert!(answer == "granted" || needs_capability, "{wish}: {answer}");
    }
    sandbox.ok(&sandbox.words("unmount", ""));
    unmount_point(&sandbox.inner);
    let _ = fs::remove_file(sandbox.inner.path("new"));

    sandbox.ok(&mount);
    let confinement = &sandbox.stats()["confinement"];
    let all = ["files", "system_calls"].iter().all(|part| confinement[part] == true);
    assert!(all && confinement["user"].as_u64().is_some_and(|user| user != 0), "{confinement}");
    for (n, wish) in wishes.list.iter().enumerate() {
        let former = server(&sandbox);
        let is_deadly = ["signal", "tcp", "unix", "mount"].iter().any(|verb| wish.starts_with(verb));
        if !is_deadly {
            let answer = read(n).unwrap();
            assert!(answer.starts_with("refused"), "{wish}: {answer}");
            continue;
        }
        // The server is killed each time that the kernel gives the request to the next one, until it is held.
        let path = sandbox.at.join(n.to_string());
        // Another process: a child of this one that closes the file, before it runs a program, would wait for the mount.
        let mut reader =
            Command::new("cat").arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until(|| log(&sandbox).contains("signal 31 killed it: a forbidden system call"));
        wait_until(|| {
            let (code, said) = sandbox.run(&sandbox.words("stats", "--json"));
            code != 0 || !said.contains(&format!("\"pid\": {},", former.as_raw_nonzero()))
        });
        sandbox.ok(&sandbox.words("unmount", "--force"));
        assert!(!reader.wait().unwrap().success(), "{wish}");
        sandbox.assert_nothing_left();
        sandbox.ok(&mount);
    }
    assert!(!sandbox.inner.path("new").exists());
    sandbox.ok(&sandbox.words("unmount", ""));
}

fn log(sandbox: &MountSandbox) -> String {
    let folder = sandbox.inner.runtime().join(".images");
    let logs = fs::read_dir(folder).unwrap().filter_map(|entry| {
        let path: PathBuf = entry.unwrap().path();
        fs::read_to_string(Path::new(&path).join("log")).ok()
    });
    logs.collect()
}

#[test]
fn a_hole_in_a_decoder_of_a_command_that_prints_gives_an_attacker_nothing() {
    let test = "a_hole_in_a_decoder_of_a_command_that_prints_gives_an_attacker_nothing";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let wishes = Wishes::new(&sandbox.inner);
    let image = image_of(&sandbox, &wishes.list);
    for (n, wish) in wishes.list.iter().enumerate() {
        let cat = format!("image cat {} /{n}", image.display());
        let free = sandbox.inner.command(&cat).env("PAGEFOLD_CONFINEMENT", "off").output().unwrap();
        let answer = answer_in(&free.stdout);
        assert_eq!(answer, "granted", "{wish}");
        unmount_point(&sandbox.inner);
        let _ = fs::remove_file(sandbox.inner.path("new"));
        let confined = sandbox.inner.command(&cat).output().unwrap();
        let answer = answer_in(&confined.stdout);
        let was_killed =
            std::os::unix::process::ExitStatusExt::signal(&confined.status) == Some(libc::SIGSYS);
        assert!(answer.starts_with("refused") || was_killed, "{wish}: {answer}, {confined:?}");
        assert!(!sandbox.inner.path("new").exists());
    }
}
