//! landlock: the files that a confined process may open.
//!
//! Descriptors that are open stay usable. Changes of metadata by path (chmod, chown) are not confined by landlock: the user
//! of the process, who owns nothing, and the filter of system calls confine these, or its root directory (`root`).

use super::Wall;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};
use std::path::Path;

/// The version of landlock whose rights are used, as far as the kernel has them: that of Linux 6.12.
const VERSION: ABI = ABI::V6;

/// Restricts the calling thread. Returns whether signals and abstract sockets are confined too, or the reason that nothing is.
pub(super) fn confine(wall: &Wall) -> Result<bool, String> {
    let restricted = restrict(wall).map_err(|e| format!("files are not confined: {e}"))?;
    restricted.ok_or_else(|| "files are not confined: the kernel has no landlock (Linux 5.13)".into())
}

fn restrict(wall: &Wall) -> Result<Option<bool>, RulesetError> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    // Without this right, which Linux 5.19 has, no file gets a second name in another directory.
    let linking = if wall.creates.is_some() { CompatLevel::HardRequirement } else { CompatLevel::BestEffort };
    let ruleset = ruleset.set_compatibility(linking).handle_access(AccessFs::Refer)?;
    let ruleset = ruleset.set_compatibility(CompatLevel::BestEffort);
    let ruleset = ruleset.handle_access(AccessFs::from_all(VERSION))?;
    let ruleset = match wall.asks_servers {
        true => ruleset,
        false => ruleset.handle_access(AccessNet::from_all(VERSION))?,
    };
    let ruleset = ruleset.scope(Scope::from_all(VERSION))?;
    let mut ruleset = ruleset.create()?;
    let reading = AccessFs::from_read(ABI::V1) & !BitFlags::from(AccessFs::Execute);
    let writing =
        AccessFs::from_all(VERSION) & !(AccessFs::Execute | AccessFs::MakeBlock | AccessFs::MakeChar);
    for (paths, access) in [(&wall.readable, reading), (&wall.writable, writing)] {
        for path in paths {
            ruleset = add(ruleset, path, access)?;
        }
    }
    if let Some(creates) = &wall.creates {
        let devices = AccessFs::MakeBlock | AccessFs::MakeChar;
        let access = if creates.privileged { writing | devices } else { writing };
        ruleset = add(ruleset, super::path_of(&creates.folder), access)?;
    }
    let status = ruleset.restrict_self()?;
    let has_scopes = match status.landlock {
        landlock::LandlockStatus::Available { effective_abi, .. } => effective_abi >= ABI::V6,
        _ => false,
    };
    Ok((status.ruleset != RulesetStatus::NotEnforced).then_some(has_scopes))
}

/// Allows `access` to a file, or to all of a directory. A path that cannot be opened is left out.
fn add(
    ruleset: landlock::RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<landlock::RulesetCreated, RulesetError> {
    let Ok(fd) = PathFd::new(path) else { return Ok(ruleset) };
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(VERSION) };
    ruleset.add_rule(PathBeneath::new(fd, access))
}
