# Sidekiq: the verbs of adapter.py, run as `ruby sidekiq.rb VERB ...`.
# frozen_string_literal: true

require 'json'
require 'sidekiq'

CALLERS = 50
IN_A_CALL = 1000
FIRST = 50 # calls that are not measured
PAYLOAD = 'x' * 100

Redis.silence_deprecations = true if defined?(Redis) && Redis.respond_to?(:silence_deprecations=)
Sidekiq.configure_server do |config|
  config.redis = { url: ENV.fetch('PEERS_URL') }
  config.logger.level = Logger::FATAL
end
# A connection for each caller: with the five of the default most would only wait.
Sidekiq.configure_client { |config| config.redis = { url: ENV.fetch('PEERS_URL'), size: CALLERS } }

def nanoseconds
  Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond)
end

def seconds
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

# The file of marks, which exists once a task has run.
module Marks
  LOCK = Mutex.new

  def self.put(mark)
    LOCK.synchronize do
      @file ||= File.open("#{ENV.fetch('PEERS_MARKS')}/#{Process.pid}.marks", 'wb').tap { |file| file.sync = true }
      @file.write([mark].pack('q<'))
    end
  end
end

class Noop
  include Sidekiq::Worker
  sidekiq_options retry: false

  def perform(_payload)
    Marks.put(nanoseconds)
  end
end

class Timed
  include Sidekiq::Worker
  sidekiq_options retry: false

  def perform(sent)
    Marks.put([nanoseconds - sent, 1].max)
  end
end

def many(count)
  Sidekiq::Client.push_bulk('class' => Noop, 'args' => Array.new(count) { [PAYLOAD] })
end

def fill(tasks)
  many([tasks, IN_A_CALL].min.tap { |count| tasks -= count }) while tasks.positive?
  {}
end

def pace(tasks, gap)
  tasks.times do
    Timed.perform_async(nanoseconds)
    sleep gap
  end
  {}
end

def lane(ends, verb)
  tasks = 0
  while seconds < ends
    verb == 'bulk' ? many(IN_A_CALL) : Noop.perform_async(PAYLOAD)
    tasks += verb == 'bulk' ? IN_A_CALL : 1
  end
  tasks
end

def enqueue(verb, amount)
  FIRST.times { Noop.perform_async(PAYLOAD) }
  # Each caller takes a connection at the same time, so that all are open before the clock starts.
  Array.new(CALLERS) { Thread.new { Noop.perform_async(PAYLOAD) } }.each(&:join) if verb == 'callers'
  began = seconds
  ends = began + amount
  tasks = Array.new(verb == 'callers' ? CALLERS : 1) { Thread.new { lane(ends, verb) } }.sum(&:value)
  { tasks: tasks, seconds: seconds - began }
end

def work(slots)
  require 'sidekiq/cli'
  # Sidekiq wants a file to require, and everything in this one is there already.
  $LOADED_FEATURES << File.expand_path(__FILE__)
  cli = Sidekiq::CLI.instance
  cli.parse(['-r', File.expand_path(__FILE__), '-c', slots.to_s, '-q', 'default'])
  cli.run
end

verb, *rest = ARGV
ARGV.clear
case verb
when 'version'
  puts JSON.dump(version: "sidekiq #{Sidekiq::VERSION}, ruby #{RUBY_VERSION}")
when 'work' then work(Integer(rest[0]))
when 'fill' then puts JSON.dump(fill(Integer(rest[0])))
when 'pace' then puts JSON.dump(pace(Integer(rest[0]), Float(rest[1])))
else puts JSON.dump(enqueue(verb, Float(rest[0])))
end
