//! A progress bar for people, on standard error; silent where that is no terminal.

use indicatif::ProgressStyle;

pub use indicatif::ProgressBar;

/// Makes a bar of `steps` steps.
pub fn bar(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg} ({elapsed}, {eta} left)");
    let bar = ProgressBar::new(steps);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
