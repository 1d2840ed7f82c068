//! Pointers that lead nowhere: the kernel answers `EFAULT`, whatever carries the bytes.

use super::{Site, With};

#[test]
fn pointers_that_lead_nowhere_are_the_kernels_to_refuse() {
    let site = Site::new(142);
    let program = site.compiled("pointers", &[]);
    let path = site.folder.path().join("pointers.sock");
    let command = [program.as_str(), path.to_str().unwrap()];
    let expected = site.answer(With::Nothing, &command);
    assert!(expected.matches("EFAULT").count() > 300, "{expected}");
    for has in [With::Library, With::Mediated] {
        assert_eq!(site.answer(has, &command), expected, "{has:?}");
    }
    let short = [&["env", "PD_PRELOAD=short"], &command[..]].concat();
    assert_eq!(site.answer(With::Library, &short), expected);
    assert!(site.connections() > 0);
}
