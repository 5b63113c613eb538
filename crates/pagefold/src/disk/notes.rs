//! The notes of `disk create`, on standard error: one line on the disk, and one for each thing that is unusual. The rest is in
//! `disk show`.

use crate::cli::output;
use pagefold_control::config::{DiskConfig, FuseUring};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceName;
use pagefold_control::startup::Ready;
use pagefold_page::size::Human;

/// Prints the notes. The first says the name, which standard output does not.
pub fn print(name: &InstanceName, config: &DiskConfig, ready: &Ready) {
    let export = ExportKind::named(&ready.export).map(ExportKind::facts);
    let hint = export.and_then(|facts| facts.hint).map(|hint| format!("; {hint}")).unwrap_or_default();
    output::note(&format!(
        "created disk '{name}'; its contents are volatile, and 'pagefold disk remove {name}' ends it{hint}"
    ));
    if let Some(limit) = config.mem_limit_bytes.filter(|limit| *limit > pagefold_sys::mem::total_bytes()) {
        let (limit, total) = (Human(limit), Human(pagefold_sys::mem::total_bytes()));
        output::note(&format!(
            "--memory {limit} is more than this machine has ({total}), so it does not keep the disk from using up memory"
        ));
    }
    if config.listen.as_ref().is_some_and(|listen| listen.tls.is_none()) {
        output::note(
            "every user of this machine can read and write the disk, because TCP without TLS does not identify users; \
             leave --listen out for a unix socket that only you can connect to, or use TLS",
        );
    }
    if ready.swap_warning.is_some() {
        output::note(&format!("not safe as swap here; 'pagefold disk show {name}' says why"));
    }
    ready.warnings.iter().for_each(|warning| output::note(warning));
    if config.fuse_uring == FuseUring::On && export.is_some_and(|facts| !facts.uses_fuse) {
        output::note("--fuse-uring has no effect: this export does not use FUSE");
    }
}
