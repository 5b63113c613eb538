//! The commands `completions` and `man`: shell completions and manual pages, made from the definition of the command
//! line.

use crate::cli::output;
use crate::manual;
use clap::builder::Resettable;
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Result};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell to make completions for
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// The arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The command whose page to show, such as 'disk create' [default: pagefold itself]
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    pub command: Vec<String>,
    /// Write all pages to this directory, instead of showing one. It is created if missing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// Runs `completions`.
pub fn completions(args: &CompletionsArgs, mut command: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "pagefold", &mut script);
    output::bytes(&script)
}

/// Runs `man`.
pub fn man(args: &ManArgs, mut command: clap::Command) -> Result<()> {
    // Fills in the fields that subcommands inherit: the version, and full names such as "pagefold disk create".
    command.build();
    match &args.dir {
        None => {
            let (command, name) = find(&command, &args.command)?;
            show(&page(command, &name)?)
        }
        Some(dir) => {
            std::fs::create_dir_all(dir)
                .map_err(|e| CliError::io(format!("creating '{}'", dir.display()), &e))?;
            write_all(&command, "pagefold", dir)
        }
    }
}

/// Finds the command that `words` name, and the name of its page.
fn find<'c>(command: &'c clap::Command, words: &[String]) -> Result<(&'c clap::Command, String)> {
    words.iter().try_fold((command, "pagefold".to_string()), |(command, name), word| {
        let is_named =
            |sub: &&clap::Command| sub.get_name() == word || sub.get_all_aliases().any(|a| a == word);
        let found = subcommands(command).find(is_named);
        let found = found.ok_or_else(|| no_command(command, &name, word))?;
        Ok((found, format!("{name}-{}", found.get_name())))
    })
}

fn no_command(parent: &clap::Command, name: &str, word: &str) -> CliError {
    let parent_name = name.replace('-', " ");
    let mut known: Vec<_> = subcommands(parent).map(clap::Command::get_name).collect();
    known.sort_unstable();
    CliError::usage(match known.is_empty() {
        true => format!("'{parent_name}' has no commands, so there is no manual page for '{word}'"),
        false => format!("'{parent_name}' has no command '{word}'; its commands are {}", known.join(", ")),
    })
}

/// The commands that have manual pages.
fn subcommands(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help")
}

/// Shows a page with man(1) on a terminal. Elsewhere, or if man(1) fails, prints its roff text.
fn show(roff: &[u8]) -> Result<()> {
    match std::io::stdout().is_terminal() && show_with_man(roff).is_ok_and(|shown| shown) {
        true => Ok(()),
        false => output::bytes(roff),
    }
}

fn show_with_man(roff: &[u8]) -> std::io::Result<bool> {
    let mut man = Command::new("man").args(["-l", "-"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = man.stdin.take() {
        // If it does not read the whole page, its exit status says whether that is an error.
        let _ = stdin.write_all(roff);
    }
    Ok(man.wait()?.success())
}

fn page(command: &clap::Command, name: &str) -> Result<Vec<u8>> {
    let sections =
        command.get_after_long_help().map_or(String::new(), |help| manual::sections(&help.to_string()));
    let named = command.clone().name(name.to_string()).display_name(name.to_string());
    let man = clap_mangen::Man::new(named.after_long_help(Resettable::Reset)).manual("Pagefold manual");
    let mut roff = Vec::new();
    let written = (|| {
        man.render_title(&mut roff)?;
        man.render_name_section(&mut roff)?;
        man.render_synopsis_section(&mut roff)?;
        man.render_description_section(&mut roff)?;
        man.render_options_section(&mut roff)?;
        if subcommands(command).next().is_some() {
            man.render_subcommands_section(&mut roff)?;
        }
        roff.write_all(sections.as_bytes())?;
        man.render_version_section(&mut roff)
    })();
    written.map_err(|e| CliError::io("writing a manual page", &e))?;
    Ok(roff)
}

fn write_all(command: &clap::Command, name: &str, dir: &Path) -> Result<()> {
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page(command, name)?)
        .map_err(|e| CliError::io(format!("writing '{}'", path.display()), &e))?;
    for sub in subcommands(command) {
        write_all(sub, &format!("{name}-{}", sub.get_name()), dir)?;
    }
    Ok(())
}
