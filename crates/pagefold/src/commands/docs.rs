//! Completions and manual pages, made from the command line's definition.

use crate::cli::args::{self, CompletionsArgs, ManArgs};
use crate::cli::output;
use crate::failure::{Failure, Outcome};
use std::path::Path;

/// `completions`.
pub fn completions(args: &CompletionsArgs) -> Outcome<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), "pagefold", &mut script);
    output::bytes(&script)
}

/// `man`: all pages into a folder, or the first to standard output.
pub fn man(args: &ManArgs) -> Outcome<()> {
    let mut command = args::command();
    // Resolves what commands inherit: the version, and full names such as "pagefold disk create".
    command.build();
    match &args.dir {
        None => output::bytes(&page(&command, "pagefold")?),
        Some(dir) => {
            std::fs::create_dir_all(dir)
                .map_err(|e| Failure::io(format!("making '{}'", dir.display()), &e))?;
            write_all(&command, "pagefold", dir)
        }
    }
}

fn page(command: &clap::Command, name: &str) -> Outcome<Vec<u8>> {
    let mut roff = Vec::new();
    let named = command.clone().name(name.to_string()).display_name(name.to_string());
    let man = clap_mangen::Man::new(named).manual("Pagefold manual");
    man.render(&mut roff).map_err(|e| Failure::io("writing a manual page", &e))?;
    Ok(roff)
}

fn write_all(command: &clap::Command, name: &str, dir: &Path) -> Outcome<()> {
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page(command, name)?)
        .map_err(|e| Failure::io(format!("writing '{}'", path.display()), &e))?;
    let visible = command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help");
    for sub in visible {
        write_all(sub, &format!("{name}-{}", sub.get_name()), dir)?;
    }
    Ok(())
}
