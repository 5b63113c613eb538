//! Advice for an image that cannot be mounted because of a sandbox: a user namespace, or `no_new_privs`.
//!
//! The server that failed is confined and cannot look at its surroundings, so the command does.

use pagefold_control::error::{CliError, Exit};
use pagefold_sys::{fusermount, privileges, userns};
use std::path::Path;

/// A user namespace with a mount namespace, whose root may mount.
const UNSHARE: &str = "unshare --user --map-root-user --mount";

/// Adds the advice to the failure of a server that could not mount.
pub fn add(failure: CliError) -> CliError {
    let advice = (failure.exit == Exit::Unavailable).then(|| Surroundings::of_this_process().advice());
    match advice.flatten() {
        Some(advice) => CliError { message: format!("{}; {advice}", failure.message), ..failure },
        None => failure,
    }
}

/// All that the advice depends on.
struct Surroundings {
    has_system_users: bool,
    has_device: bool,
    needs_helper: bool,
    has_no_new_privs: bool,
    is_restricted: bool,
}

impl Surroundings {
    fn of_this_process() -> Self {
        // AppArmor moves processes that make user namespaces to this profile, which denies capabilities.
        let profile = std::fs::read_to_string("/proc/self/attr/current");
        Surroundings {
            has_system_users: userns::has_system_users(),
            has_device: Path::new(pagefold_sys::fusedev::DEVICE).exists(),
            needs_helper: fusermount::is_needed(),
            has_no_new_privs: privileges::has_no_new_privs(),
            is_restricted: profile.is_ok_and(|profile| profile.starts_with("unprivileged_userns")),
        }
    }

    fn advice(&self) -> Option<String> {
        match self {
            Surroundings { has_device: false, .. } => Some(
                "a container gets the device by '--device /dev/fuse' (podman, docker) or '--dev-bind /dev/fuse /dev/fuse' \
                 (bwrap)"
                    .into(),
            ),
            Surroundings { is_restricted: true, .. } => Some(
                "AppArmor denies capabilities in user namespaces: allow 'userns' in a profile for the program that makes the \
                 namespace, or set kernel.apparmor_restrict_unprivileged_userns=0"
                    .into(),
            ),
            Surroundings { needs_helper: true, has_system_users: false, .. } => Some(format!(
                "set-user-id programs such as fusermount3 gain no rights in this user namespace: mount outside of it, or as \
                 its root in '{UNSHARE}'"
            )),
            Surroundings { needs_helper: true, has_no_new_privs: true, .. } => Some(format!(
                "set-user-id programs such as fusermount3 gain no rights here, because no_new_privs is set (bwrap, systemd's \
                 NoNewPrivileges): mount outside of the sandbox, or in '{UNSHARE}'"
            )),
            Surroundings { has_system_users: false, .. } => Some(format!(
                "root of a user namespace mounts only in a mount namespace of that: run the commands in '{UNSHARE}'"
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYSTEM: Surroundings = Surroundings {
        has_system_users: true,
        has_device: true,
        needs_helper: false,
        has_no_new_privs: false,
        is_restricted: false,
    };

    #[test]
    fn each_sandbox_has_its_advice_and_the_system_none() {
        assert_eq!(SYSTEM.advice(), None);
        assert_eq!(Surroundings { needs_helper: true, ..SYSTEM }.advice(), None);
        let says = |surroundings: Surroundings, what: &str| {
            let advice = surroundings.advice().unwrap();
            assert!(advice.contains(what), "{advice}");
        };
        let namespace = Surroundings { has_system_users: false, ..SYSTEM };
        says(Surroundings { has_device: false, ..SYSTEM }, "--device /dev/fuse");
        says(Surroundings { is_restricted: true, ..SYSTEM }, "apparmor_restrict_unprivileged_userns");
        says(Surroundings { needs_helper: true, ..namespace }, "mount outside");
        says(Surroundings { needs_helper: true, has_no_new_privs: true, ..SYSTEM }, "no_new_privs");
        says(Surroundings { has_system_users: false, ..SYSTEM }, "mount namespace");
    }

    #[test]
    fn other_failures_have_no_advice() {
        let busy = CliError::new(Exit::Busy, "x");
        assert_eq!(add(busy.clone()), busy);
    }
}
