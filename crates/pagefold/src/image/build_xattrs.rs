//! The options of `image build` for extended attributes, and for an overlay mount inside of the source.

use super::open::path_failure;
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Result};
use pagefold_image_build::source::NestedOverlay;
use pagefold_image_build::{
    CONTEXTS_BYTES_MAX, FileContexts, SetXattr, XattrChanges, XattrFilter, XattrPattern,
};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The arguments for extended attributes.
#[derive(Debug, Args)]
pub struct XattrArgs {
    /// Leave out all extended attributes, access lists and capabilities too. --set-xattr and --file-contexts add theirs
    #[arg(long, conflicts_with_all = ["xattrs_include", "xattrs_exclude"])]
    pub no_xattrs: bool,
    /// Keep only attributes whose names match a pattern, as in 'user.*'. Can be repeated. An attribute stays if one of
    /// these patterns matches, and none of --xattrs-exclude, whatever their order. Without this option all match but, in a
    /// directory, labels of the host (security.selinux, SMACK64, apparmor, ima and evm): '*' keeps these too
    #[arg(long, value_name = "PATTERN")]
    pub xattrs_include: Vec<String>,
    /// Leave out attributes whose names match a pattern, as in 'trusted.*'. Can be repeated
    #[arg(long, value_name = "PATTERN")]
    pub xattrs_exclude: Vec<String>,
    /// Set an attribute on all files, or on those that match PATTERN as with --exclude. Can be repeated; the last one
    /// counts. VALUE is text, hexadecimal after 0x, or base64 after 0s. Types of files that cannot have attributes of
    /// users (user.*) get none
    #[arg(long, value_name = "[PATTERN:]NAME=VALUE")]
    pub set_xattr: Vec<String>,
    /// Take labels of SELinux from a file as file_contexts(5) describes it. Its expressions match paths from the root of
    /// the image, which is /. Labels of the source are left out
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file_contexts: Option<PathBuf>,
    /// Keep whiteouts and attributes of overlayfs in SOURCE for a mount inside. That is for trees with the storage of a
    /// container engine: the image as a lower layer shows them, and hides nothing. Linux 6.7 and
    /// later read what it writes
    #[arg(long)]
    pub escape_overlay: bool,
    /// Leave out whiteouts (devices 0:0) and attributes of overlayfs that SOURCE has
    #[arg(long, conflicts_with = "escape_overlay")]
    pub strip_overlay: bool,
}

impl XattrArgs {
    /// The treatment of an overlay mount inside.
    pub fn nested(&self) -> NestedOverlay {
        match (self.escape_overlay, self.strip_overlay) {
            (true, _) => NestedOverlay::Escape,
            (_, true) => NestedOverlay::Strip,
            _ => NestedOverlay::Keep,
        }
    }

    /// The attributes of the source that stay.
    pub fn filter(&self) -> Result<XattrFilter> {
        Ok(XattrFilter {
            nothing: self.no_xattrs,
            replaces_selinux: self.file_contexts.is_some(),
            include: parsed("--xattrs-include", &self.xattrs_include, XattrPattern::parse)?,
            exclude: parsed("--xattrs-exclude", &self.xattrs_exclude, XattrPattern::parse)?,
        })
    }

    /// The attributes that are added.
    pub fn changes(&self) -> Result<XattrChanges> {
        Ok(XattrChanges {
            contexts: self.file_contexts.as_deref().map(contexts).transpose()?,
            set: parsed("--set-xattr", &self.set_xattr, SetXattr::parse)?,
        })
    }
}

fn parsed<T>(
    option: &str,
    texts: &[String],
    parse: impl Fn(&str) -> std::result::Result<T, String>,
) -> Result<Vec<T>> {
    let parsed = texts.iter().map(|text| parse(text)).collect::<std::result::Result<_, _>>();
    parsed.map_err(|e| CliError::usage(format!("{option}: {e}")))
}

/// Reads a file of labels.
fn contexts(path: &Path) -> Result<FileContexts> {
    let shown = path.display();
    let read = File::open(path).and_then(|file| {
        let mut text = Vec::new();
        file.take(CONTEXTS_BYTES_MAX as u64 + 1).read_to_end(&mut text).map(|_| text)
    });
    let text = read.map_err(|e| path_failure(format!("--file-contexts: reading '{shown}'"), &e))?;
    FileContexts::parse(&text).map_err(|e| CliError::usage(format!("--file-contexts: '{shown}' is {e}")))
}
