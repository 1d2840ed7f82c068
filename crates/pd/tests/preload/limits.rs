//! Programs that have used up what a process may have.

use super::{Site, With};

/// Steps of `limits.c`.
const STEPS: u32 = 14;

/// The library never ends a program for want of memory or of descriptors; what it cannot do the kernel does.
#[test]
fn programs_without_memory_or_descriptors_go_on() {
    let site = Site::new(141);
    let program = site.compiled("limits", &[]);
    // One container for all of them: "memory 0" and what that came to, and so on.
    let script = format!(
        "for kind in memory soft hard; do step=0; while [ $step -lt {STEPS} ]; do echo $kind $step; \
         timeout 30 {program} $kind $step 2>&1; echo ended $?; step=$((step+1)); done; done"
    );
    let command = ["sh", "-c", &script];
    let expected = site.answer(With::Nothing, &command);
    assert_eq!(expected.matches("ended 0").count(), 3 * STEPS as usize, "{expected}");
    for has in [With::Library, With::Mediated] {
        let found = site.answer(has, &command);
        let differs = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
        let near = |text: &str| {
            text.lines().skip(differs.unwrap_or(0).saturating_sub(30)).take(45).collect::<Vec<_>>().join("\n")
        };
        assert!(found == expected, "{has:?}:\n{}\nexpected:\n{}", near(&found), near(&expected));
    }
}
