//! The state of `pd top` between two drawings, and the effects of keys. Knows neither terminal nor driver.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::columns::{Column, CONNECTIONS, CONTAINERS, SERVICES, SORT_AT_FIRST, TRAFFIC};
use crate::live::{ConnectionView, ContainerView, ServiceView, TrafficView, View};

/// Shortest and longest time between two looks.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// The table that keys go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// The upper one.
    Containers,
    /// The lower one.
    Connections,
    /// Services, in place of the lower one.
    Services,
    /// Ports and pipes, in place of the lower one.
    Traffic,
}

/// Display of a table.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableState {
    /// Column that it is sorted by.
    pub sort: usize,
    /// In the other direction.
    pub reverse: bool,
    /// Rows scrolled away.
    pub offset: usize,
}

/// See the module.
#[derive(Debug)]
pub struct App {
    /// The view to show.
    pub view: Option<View>,
    /// Reason why there is nothing new to show.
    pub problem: Option<String>,
    /// Drivers that were seen to start since.
    pub restarts: u32,
    /// Time between two looks.
    pub interval: Duration,
    /// Nothing new is shown for now.
    pub paused: bool,
    /// The help is shown.
    pub help: bool,
    /// The filter is being typed.
    pub typing: bool,
    /// Rows without this are left out.
    pub filter: String,
    /// The part that receives keys.
    pub focus: Focus,
    /// The upper table.
    pub containers: TableState,
    /// The lower table.
    pub connections: TableState,
    /// The tables in its place.
    pub services: TableState,
    /// See [`Self::services`].
    pub traffic: TableState,
    /// Set when the program is to end.
    pub done: bool,
}

impl App {
    /// Returns the state at the start.
    pub fn new(interval: Duration) -> App {
        let table = TableState { sort: SORT_AT_FIRST, ..TableState::default() };
        App {
            view: None,
            problem: None,
            restarts: 0,
            interval: interval.clamp(INTERVAL_MIN, INTERVAL_MAX),
            paused: false,
            help: false,
            typing: false,
            filter: String::new(),
            focus: Focus::Containers,
            containers: table,
            connections: table,
            services: table,
            traffic: table,
            done: false,
        }
    }

    /// Applies the result of a look at the driver.
    pub fn take(&mut self, looked: Result<View, String>) {
        match looked {
            Ok(view) => {
                let known = self.view.as_ref().map(|old| old.driver.started_ns);
                self.restarts += u32::from(known.is_some_and(|started| started != view.driver.started_ns));
                (self.view, self.problem) = (Some(view), None);
            }
            Err(problem) => self.problem = Some(problem),
        }
    }

    /// Handles a key.
    pub fn press(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            self.done |= key.code == KeyCode::Char('c');
            return;
        }
        if self.typing {
            return self.press_typing(key.code);
        }
        if self.help {
            // Any key closes it; q ends as ever.
            self.help = false;
            self.done = key.code == KeyCode::Char('q');
            return;
        }
        match key.code {
            KeyCode::Char('q') => self.done = true,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => self.done = true,
            KeyCode::Char('h' | '?') => self.help = true,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('+') => self.interval = (self.interval * 2).min(INTERVAL_MAX),
            KeyCode::Char('-') => self.interval = (self.interval / 2).max(INTERVAL_MIN),
            KeyCode::Tab => self.focus = self.beside(1),
            KeyCode::BackTab => self.focus = self.beside(-1),
            code => self.press_table(code),
        }
    }

    /// Returns the table that is `step` further in the cycle of the displayed ones.
    fn beside(&self, step: isize) -> Focus {
        let all = [
            (Focus::Containers, true),
            (Focus::Connections, true),
            (Focus::Services, self.has_services()),
            (Focus::Traffic, self.has_traffic()),
        ];
        let round: Vec<Focus> = all
            .into_iter()
            .filter(|(focus, is_there)| *is_there || *focus == self.focus)
            .map(|(focus, _)| focus)
            .collect();
        let at = round.iter().position(|focus| *focus == self.focus).unwrap_or_default() as isize;
        round[(at + step).rem_euclid(round.len() as isize) as usize]
    }

    fn press_typing(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if self.filter.len() < 64 => self.filter.push(c),
            _ => {}
        }
    }

    fn press_table(&mut self, code: KeyCode) {
        let (table, columns) = match self.focus {
            Focus::Containers => (&mut self.containers, CONTAINERS.len()),
            Focus::Connections => (&mut self.connections, CONNECTIONS.len()),
            Focus::Services => (&mut self.services, SERVICES.len()),
            Focus::Traffic => (&mut self.traffic, TRAFFIC.len()),
        };
        match code {
            KeyCode::Char('s') | KeyCode::Right => table.sort = (table.sort + 1) % columns,
            KeyCode::Char('S') | KeyCode::Left => table.sort = (table.sort + columns - 1) % columns,
            KeyCode::Char('r') => table.reverse = !table.reverse,
            KeyCode::Down | KeyCode::Char('j') => table.offset = table.offset.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => table.offset = table.offset.saturating_sub(1),
            KeyCode::PageDown => table.offset = table.offset.saturating_add(10),
            KeyCode::PageUp => table.offset = table.offset.saturating_sub(10),
            KeyCode::Home => table.offset = 0,
            _ => {}
        }
    }

    /// Returns the containers to show, in order.
    pub fn container_rows(&self) -> Vec<&ContainerView> {
        let all = self.view.as_ref().map_or(&[][..], |view| &view.containers);
        rows(all, &CONTAINERS, self.containers, &self.filter)
    }

    /// Returns the connections to show, in order.
    pub fn connection_rows(&self) -> Vec<&ConnectionView> {
        let all = self.view.as_ref().map_or(&[][..], |view| &view.connections);
        rows(all, &CONNECTIONS, self.connections, &self.filter)
    }

    /// Returns the services to show, in order.
    pub fn service_rows(&self) -> Vec<&ServiceView> {
        let all = self.view.as_ref().map_or(&[][..], |view| &view.services);
        rows(all, &SERVICES, self.services, &self.filter)
    }

    /// Tells whether the policy has services.
    pub fn has_services(&self) -> bool {
        self.view.as_ref().is_some_and(|view| !view.services.is_empty())
    }

    /// Ports and tenants to show, in order.
    pub fn traffic_rows(&self) -> Vec<&TrafficView> {
        let all = self.view.as_ref().map_or(&[][..], |view| &view.traffic);
        rows(all, &TRAFFIC, self.traffic, &self.filter)
    }

    /// Tells whether there are ports or pipes.
    pub fn has_traffic(&self) -> bool {
        self.view.as_ref().is_some_and(|view| !view.traffic.is_empty())
    }
}

fn rows<'a, T>(all: &'a [T], columns: &[Column<T>], state: TableState, filter: &str) -> Vec<&'a T> {
    let filter = filter.to_lowercase();
    let matches = |row: &&T| columns.iter().any(|column| column.text(row).to_lowercase().contains(&filter));
    let mut rows: Vec<&T> = all.iter().filter(matches).collect();
    rows.sort_by(|a, b| columns[state.sort].order(a, b));
    if state.reverse {
        rows.reverse();
    }
    rows
}

#[cfg(test)]
pub(super) fn app_for_tests() -> App {
    let mut app = App::new(Duration::from_secs(1));
    app.take(Ok(crate::live::view_for_tests()));
    app
}

#[cfg(test)]
mod tests {
    use super::app_for_tests as app;
    use super::*;

    fn press(app: &mut App, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\x1b' => KeyCode::Esc,
                other => KeyCode::Char(other),
            };
            app.press(KeyEvent::new(code, KeyModifiers::NONE));
        }
    }

    fn names(app: &App) -> Vec<&str> {
        app.container_rows().iter().map(|c| c.name.as_str()).collect()
    }

    #[test]
    fn rows_are_sorted_and_the_keys_change_how() {
        let mut app = app();
        assert_eq!(names(&app), ["a", "pid 1002", "b"], "by what they send");
        press(&mut app, "s");
        assert_eq!(names(&app)[0], "b", "by what they receive");
        press(&mut app, "Sr");
        assert_eq!(names(&app), ["b", "pid 1002", "a"]);
        press(&mut app, "\tr");
        assert_eq!(names(&app), ["b", "pid 1002", "a"], "the other table's");
        assert_eq!(app.connection_rows()[0].connection, 1);
    }

    #[test]
    fn the_tab_key_goes_round_and_leaves_out_what_is_not_there() {
        let mut app = app();
        let mut round = Vec::new();
        for _ in 0..4 {
            press(&mut app, "\t");
            round.push(app.focus);
        }
        assert_eq!(round, [Focus::Connections, Focus::Services, Focus::Traffic, Focus::Containers]);
        app.press(KeyEvent::new(KeyCode::BackTab, KeyModifiers::NONE));
        assert_eq!(app.focus, Focus::Traffic);
        assert_eq!(app.traffic_rows().iter().map(|row| &*row.kind).collect::<Vec<_>>(), ["gen", "tenant"]);
        app.focus = Focus::Connections;
        app.view.as_mut().unwrap().services.clear();
        press(&mut app, "\t");
        assert_eq!(app.focus, Focus::Traffic);
        app.view.as_mut().unwrap().traffic.clear();
        press(&mut app, "\t");
        assert_eq!(app.focus, Focus::Containers, "from a table that has gone");
        app.press(KeyEvent::new(KeyCode::BackTab, KeyModifiers::NONE));
        assert_eq!(app.focus, Focus::Connections);
    }

    #[test]
    fn services_are_sorted_by_new_connections_and_filtered() {
        let mut app = app();
        let mut second = app.view.as_ref().unwrap().services[0].clone();
        second.address.set_port(81);
        (second.backends_up, second.connections_made_per_second) = (0, 9e9);
        app.view.as_mut().unwrap().services.push(second);
        let ports = |app: &App| app.service_rows().iter().map(|s| s.address.port()).collect::<Vec<_>>();
        app.focus = Focus::Services;
        assert_eq!(ports(&app), [81, 80]);
        press(&mut app, "r");
        assert_eq!(ports(&app), [80, 81]);
        press(&mut app, "rSS");
        assert_eq!(ports(&app), [81, 80], "by the part of backends that is up");
        press(&mut app, "/0/2\n");
        assert_eq!(ports(&app), [81]);
    }

    #[test]
    fn the_filter_leaves_rows_out_and_escape_brings_them_back() {
        let mut app = app();
        press(&mut app, "/PID q\n");
        assert!(!app.done, "a letter of the filter is no command");
        assert_eq!(names(&app), Vec::<&str>::new());
        press(&mut app, "\x1b/pid\n");
        assert_eq!(names(&app), ["pid 1002"]);
        assert_eq!(app.connection_rows().len(), 1);
        press(&mut app, "\x1b");
        assert_eq!(names(&app).len(), 3);
        press(&mut app, "\x1b");
        assert!(app.done);
    }

    #[test]
    fn pause_help_interval_and_end() {
        let mut app = app();
        press(&mut app, "p?");
        assert!(app.paused && app.help);
        press(&mut app, "x");
        assert!(!app.help && !app.done);
        press(&mut app, &"-".repeat(20));
        assert_eq!(app.interval, INTERVAL_MIN);
        press(&mut app, &"+".repeat(20));
        assert_eq!(app.interval, INTERVAL_MAX);
        app.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(app.done);
    }

    #[test]
    fn another_driver_is_noticed() {
        let mut app = app();
        app.take(Err("gone".into()));
        assert!(app.problem.is_some() && app.view.is_some());
        let mut view = crate::live::view_for_tests();
        view.driver.started_ns += 1;
        app.take(Ok(view));
        assert_eq!((app.restarts, app.problem.as_deref()), (1, None));
    }
}
