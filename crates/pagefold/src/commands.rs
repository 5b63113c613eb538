//! The command line, and the call of the command that the user chose.
//!
//! Help, manual pages and shell completions are made from the same definition. The arguments of a command are defined
//! in the command's file.

use crate::cli::style::{color_parser, set_color};
use crate::cli::{exit, output, printable, style};
use crate::disk::{self, DiskCommand};
use crate::docs;
use crate::image::{self, ImageCommand};
use crate::mkfs_erofs;
use crate::mount_helper::{self, Wanted};
#[cfg(feature = "zram")]
use crate::zram;
use anstream::ColorChoice;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use pagefold_control::error::{CliError, EXITS, Exit, Result};
use pagefold_control::instance::location;
use pagefold_control::startup::SERVE;
use std::ffi::OsString;
use std::process::ExitCode;

/// Compresses 4 KiB pages in user space, behind RAM disks and read-only images
#[derive(Debug, Parser)]
#[command(name = "pagefold", version, about, propagate_version = true, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// When to use colours
    #[arg(long, global = true, value_parser = color_parser(), value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
    /// Print no notes, no progress and no summary: only results and errors
    #[arg(long, short = 'q', global = true)]
    pub quiet: bool,
    /// The command
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create and manage compressed RAM disks
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Mount, list, extract and check compressed read-only file systems (EROFS images)
    #[command(subcommand)]
    Image(Box<ImageCommand>),
    /// Run a command for which disks are at the paths of the kernel's zram
    ///
    /// In the command, and in nothing else, each disk with a name zramN is the device /dev/zramN, with the files of
    /// zram in /sys/block/zramN. /sys/class/zram-control has hot_add and hot_remove, and 'modprobe zram' and
    /// 'rmmod zram' create and remove disks. So scripts that drive the kernel's zram drive pagefold. The exit code is
    /// that of the command, or 128 plus the number of the signal that killed it, or 125 to 127 if it cannot be started.
    /// Needs root.
    #[cfg(feature = "zram")]
    ZramShell(zram::ShellArgs),
    /// Mount the files of the kernel's zram at a directory, for disks named zramN
    ///
    /// DIRECTORY/zramN has a file for each attribute of the disk, DIRECTORY/class/zram-control has hot_add and
    /// hot_remove. The command runs until Ctrl-C, SIGTERM or an unmount; disks stay. Needs root.
    #[cfg(feature = "zram")]
    ZramTree(zram::TreeArgs),
    /// Print a shell completion script
    Completions(docs::CompletionsArgs),
    /// Show the manual page of a command, or write all manual pages to a directory
    ///
    /// Shows the page with man(1) on a terminal, and prints its roff text elsewhere.
    Man(docs::ManArgs),
}

/// The definition of the command line, with the tables of the long help: exit codes, files, attributes.
pub fn command() -> clap::Command {
    Cli::command()
        .after_long_help(format!("{}\n\n{}\n\n{}", exit_codes(), location::HELP, mkfs_erofs::HELP))
        .mut_subcommand("disk", disk::with_tables)
        .mut_subcommand("image", image::with_tables)
}

fn exit_codes() -> String {
    let mut text = String::from("Exit codes:");
    for (exit, meaning) in EXITS {
        text.push_str(&format!("\n  {}  {meaning}", exit as u8));
    }
    text
}

/// Parses the command line, runs the command, and returns its exit code.
pub fn run() -> ExitCode {
    // The hidden command is not in the definition, so help and completions do not show it.
    if std::env::args_os().nth(1).is_some_and(|word| word == SERVE) {
        return pagefold_server::serve_from_stdin().map_or_else(|e| finish(Err(e)), ExitCode::from);
    }
    let words: Vec<_> = std::env::args_os().collect();
    if let Some((program, rest)) = mkfs_erofs::find(&words) {
        return finish(mkfs_erofs::run(program, rest).map(|()| ExitCode::SUCCESS));
    }
    let arguments = match mount_helper::arguments(words, &command()) {
        Ok(Wanted::Command(arguments)) => arguments,
        Ok(Wanted::Nothing) => return ExitCode::SUCCESS,
        Err(e) => return finish(Err(e)),
    };
    match parse(arguments.iter().cloned()) {
        Ok(cli) => {
            set_color(cli.color);
            output::set_quiet(cli.quiet);
            finish(dispatch(&cli.command))
        }
        // Parsing escaped arguments fails in the same way, with a message that a terminal does not interpret.
        Err(e) => match parse(arguments.into_iter().map(printable::argument)) {
            Err(escaped) => print_clap_error(&escaped),
            Ok(_) => finish(Err(CliError::usage(e.to_string()))),
        },
    }
}

fn parse(arguments: impl Iterator<Item = OsString>) -> std::result::Result<Cli, clap::Error> {
    command().try_get_matches_from(arguments).and_then(|m| Cli::from_arg_matches(&m))
}

fn finish(result: Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(failure) => {
            output::error(&failure.message);
            ExitCode::from(exit::code(failure.exit))
        }
    }
}

/// Prints the result of clap's parser that is no command: help or version on standard output, an error on standard
/// error.
fn print_clap_error(e: &clap::Error) -> ExitCode {
    match e.to_string().strip_prefix("error: ") {
        Some(_) => output::parser_error(&without_label(e)),
        // If this cannot be printed, there is no other place to report it.
        None => drop(e.print()),
    }
    ExitCode::from(if e.use_stderr() { Exit::Usage } else { Exit::Ok } as u8)
}

/// The text of an error of clap, with its hints and the usage, but without its label: errors of all kinds have one
/// label, that of [`output::error`].
fn without_label(e: &clap::Error) -> String {
    let text = match style::stderr_colours() {
        true => e.render().ansi().to_string(),
        false => e.to_string(),
    };
    let message = text.split_once("error:").map_or(text.as_str(), |(_, message)| message);
    message.trim_start_matches("\x1b[0m").trim().to_string()
}

fn dispatch(command: &Command) -> Result<ExitCode> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        Command::Disk(command) => disk::run(command),
        Command::Image(command) => image::run(command).map(done),
        #[cfg(feature = "zram")]
        Command::ZramShell(args) => zram::run_shell(args),
        #[cfg(feature = "zram")]
        Command::ZramTree(args) => zram::run_tree(args).map(done),
        Command::Completions(args) => docs::completions(args, self::command()).map(done),
        Command::Man(args) => docs::man(args, self::command()).map(done),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn clap_accepts_the_definition() {
        super::command().debug_assert();
    }

    /// The lists of commands and options that clap prints, and shells when they complete, show a line each.
    #[test]
    fn first_sentences_of_help_fit_a_line() {
        let mut long = Vec::new();
        collect_long(&super::command(), &mut long);
        assert!(long.is_empty(), "{}", long.join("\n"));
    }

    fn collect_long(command: &clap::Command, long: &mut Vec<String>) {
        let options = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let named = options.map(|arg| (arg.get_id().to_string(), arg.get_help()));
        for (name, help) in named.chain([(String::new(), command.get_about())]) {
            let help = help.map(ToString::to_string).unwrap_or_default();
            let first = help.split(". ").next().and_then(|s| s.split(" [default").next()).unwrap_or_default();
            if first.len() > 80 {
                long.push(format!("{} {name}: {first}", command.get_name()));
            }
        }
        command.get_subcommands().for_each(|sub| collect_long(sub, long));
    }
}
