//! The notes of `disk create` on the new disk.

use crate::cli::output;
use pagefold_control::config::{DiskConfig, FuseUring};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceName;
use pagefold_control::startup::Ready;
use pagefold_page::size::Human;
use pagefold_server::disk::{OWN_BYTES, RESERVE_BYTES, TABLE_BYTES_PER_GIB};

/// Prints the notes. The first says the name, which standard output does not.
pub fn print(name: &InstanceName, config: &DiskConfig, ready: &Ready) {
    output::note(&format!("created disk '{name}' on {}", ready.device));
    let export = ExportKind::named(&ready.export).map(ExportKind::facts);
    let hint = export.and_then(|facts| facts.hint).map(|hint| format!(" {hint}")).unwrap_or_default();
    output::note(&format!(
        "contents are volatile: they are in the memory of a server process, and lost when it ends.{hint}"
    ));
    output::note(&overhead(export.is_some_and(|facts| facts.is_for_swap)));
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
    if let Some(backing) = &config.backing {
        let lifetime = match backing.created {
            Some(_) => "the file is removed with the disk",
            None => "it stays when the disk is removed, with the pages written last",
        };
        let path = backing.path.display();
        output::note(&format!("written-back pages are not encrypted in '{path}'; {lifetime}"));
    }
}

/// The note on the memory that the server takes beside that for pages.
fn overhead(has_reserve: bool) -> String {
    let own = Human(OWN_BYTES);
    let reserve = match has_reserve {
        true => format!(", {} of reserve", Human(RESERVE_BYTES)),
        false => String::new(),
    };
    let tables = Human(TABLE_BYTES_PER_GIB);
    format!(
        "in addition to the memory for pages, the server takes up to {own}{reserve}, and {tables} for each GiB written"
    )
}
