//! The command line.

use clap::Parser;
use std::path::PathBuf;

/// Draw configurations and loads of pagefold at random, run them, and check all documented promises.
///
/// Each case has a seed, which is printed; `pagefold-soak SUITE --case SEED` runs that case again.
#[derive(Debug, Parser)]
#[command(name = "pagefold-soak", version)]
pub struct Cli {
    /// Suite to run: engine, disk, image or memory [default: all, alternating]
    pub suite: Option<String>,
    /// Seed of the run; the same seed draws the same cases [default: from the clock]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Minutes during which cases begin; the last ones take a little longer
    #[arg(long, value_name = "M", default_value_t = 10.0)]
    pub minutes: f64,
    /// Run the case of this seed and no other; needs a suite
    #[arg(long, value_name = "SEED", requires = "suite", conflicts_with_all = ["seed", "minutes"])]
    pub case: Option<u64>,
    /// Times to run the case of --case, or until a fault: the timing of threads differs from run to run
    #[arg(long, value_name = "COUNT", requires = "case", default_value_t = 1)]
    pub repeat: u64,
    /// Begin no further case after so many faults
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub max_faults: usize,
    /// Folder for the files of cases; it must be empty or not exist [default: one in /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The pagefold program [default: the one beside this program, built first if cargo runs this]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Print the case that the seed of --case draws, and do not run it
    #[arg(long, requires = "case")]
    pub describe: bool,
    /// Run the case of --case in this process and this folder, as the runner starts it
    #[arg(long, hide = true, requires = "case")]
    pub here: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
