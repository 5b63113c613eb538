//! The exports that a disk can have: one table of them, [`ExportKind::ALL`].
//!
//! The command line makes `--export`, its help and its notes from the table, the server chooses by it how to prepare and
//! to end, and the table of docs/disk.md is compared with it. The code of an export is a module of
//! `pagefold_server::export`. To add an export, add a kind here and a module there.

use pagefold_sys::{fusedev, loopdev, rundir, userns};
use serde::{Deserialize, Serialize};

/// A kind of export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportKind {
    /// A loop device over a FUSE file.
    Loop,
    /// An NBD server.
    Nbd,
}

/// The facts on an export. The texts are parts of sentences, without a full stop.
#[derive(Debug)]
pub struct ExportFacts {
    /// Its name: the value of `--export`, and `export` in JSON.
    pub name: &'static str,
    /// The same as part of a sentence, "the ... export".
    pub title: &'static str,
    /// The thing by which programs reach the disk, with an article.
    pub access: &'static str,
    /// The rights and facilities that it needs.
    pub needs: &'static str,
    /// The reason that the export certainly cannot be made here; `None` if it can be tried.
    pub unavailable_reason: fn() -> Option<String>,
    /// The device that `disk create` prints.
    pub prints: &'static str,
    /// Whether the disk can be swap: then the server locks its memory and has a reserve.
    pub is_for_swap: bool,
    /// Whether its requests come through FUSE (`--fuse-uring`).
    pub uses_fuse: bool,
    /// Whether it can listen on an address (`--listen`).
    pub can_listen: bool,
    /// How `disk remove` treats a disk in use.
    pub stop: &'static str,
    /// Advice for a user who has created a disk: the end of a sentence about it.
    pub hint: Option<&'static str>,
    /// Whether something outside of the folder of the disk, such as a mount, outlives the server. Then commands remove
    /// it and the folder; otherwise the server removes the folder.
    pub outlives_server: bool,
}

const LOOP: ExportFacts = ExportFacts {
    name: "loop",
    title: "loop",
    access: "a loop device",
    needs: "root, FUSE and loop devices",
    unavailable_reason: loop_unavailable_reason,
    prints: "the path of a block device, `/dev/loopN`",
    is_for_swap: true,
    uses_fuse: true,
    can_listen: false,
    stop: "refused; `--force` runs swapoff, and takes the device from processes that have it open; a mounted disk stays while its server responds",
    hint: None,
    outlives_server: true,
};

const NBD: ExportFacts = ExportFacts {
    name: "nbd",
    title: "NBD",
    access: "an NBD server on a unix socket, or on TCP with `--listen`",
    needs: "no privileges",
    unavailable_reason: || None,
    prints: "the URI of the NBD server",
    is_for_swap: false,
    uses_fuse: false,
    can_listen: true,
    stop: "refused; `--force` disconnects clients",
    hint: Some(
        "clients take the URI, such as 'nbdcopy FILE URI' (package libnbd-bin or libnbd) and qemu (docs/disk.md)",
    ),
    outlives_server: false,
};

impl ExportKind {
    /// All kinds. Without a choice of the user, a disk gets the first that works.
    pub const ALL: [ExportKind; 2] = [ExportKind::Loop, ExportKind::Nbd];

    /// The facts on this kind.
    pub const fn facts(self) -> &'static ExportFacts {
        match self {
            ExportKind::Loop => &LOOP,
            ExportKind::Nbd => &NBD,
        }
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.facts().name == name)
    }
}

/// The reason that a loop device certainly cannot be made here; `None` if it can be tried.
fn loop_unavailable_reason() -> Option<String> {
    if rundir::effective_uid() != 0 {
        return Some("it needs root".to_string());
    }
    let fuse = fusedev::open().map(|_| ());
    let failure = fuse.and_then(|()| loopdev::open_control().map(|_| ())).err()?;
    Some(match userns::has_system_users() {
        true => failure.to_string(),
        false => format!("it needs root outside of user namespaces: {failure}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_configurations() {
        for kind in ExportKind::ALL {
            let name = kind.facts().name;
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{name}\""));
            assert_eq!(ExportKind::named(name), Some(kind));
        }
        assert_eq!(ExportKind::named("auto"), None);
    }
}
