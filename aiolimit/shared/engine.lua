-- What the engine does in one step: calls on the windows of keys, decided as `window.py` decides.
--
-- KEYS: of each call in turn its windows, its pacer if it has one, and sets of seeds if it has
-- some: the windows from before the periods were changed, the oldest set first.
-- ARGV: the calls, packed, each after its length; so is what is answered. See `script.py`.
--
-- A window is one string: a header of seven numbers, then the older entries, (time, cost) each.
-- Times are whole microseconds of the engine's clock. Where that is behind the last write, as on
-- a promoted replica, no time has passed; from there it goes on, by what was lost so far.
local unpack, pack, floor, ceil = struct.unpack, struct.pack, math.floor, math.ceil
local HEAD, HEAD_SIZE, ENTRY, NEVER = '<ddddddd', 56, '<dd', -1 / 0
local TAKE, CHARGE, GIVE_BACK, DEBIT, BEAT, LEAVE, RESET, MOVE = 0, 1, 2, 3, 4, 5, 6, 7
local MARGIN = 1000 -- milliseconds that a key lives longer than it matters
local SLOW = 3600000 -- the same where a test says what time it is, as that may stand still

local clock = redis.call('TIME')
clock = clock[1] * 1000000 + clock[2]

local function stop(key)
  error({err = 'WRONGTYPE ' .. key .. ' holds what is no window'})
end

-- What is no number, or infinite, is not ours: only a window that is empty was never used.
local function check(key, lost, last, total, older)
  if not (lost > NEVER and lost < -NEVER and last < -NEVER and total >= 0 and total < -NEVER
    and older < -NEVER) then stop(key) end
  if total > 0 and not (last > NEVER) then stop(key) end
end

local function get(key)
  local text = redis.call('GET', key)
  if text and (#text < HEAD_SIZE or (#text - HEAD_SIZE) % 16 ~= 0) then stop(key) end
  return text
end

local function read(key, text, limit, period, parts)
  local window = {key = key, limit = limit, period = period, parts = parts, text = text or '',
    lost = 0, closes = NEVER, last = NEVER, total = 0, older = 0, from = HEAD_SIZE + 1, more = ''}
  if text then
    window.lost, window.born, window.gone, window.closes, window.last, window.total,
      window.older = unpack(HEAD, text)
    check(key, window.lost, window.last, window.total, window.older)
  end
  return window
end

-- Let what is old leave.
local function drop(window, now)
  if not window.gone then window.born, window.gone = now, now - 1 end -- there was nothing here
  if window.total == 0 then return end
  if now - window.last >= window.period then
    window.gone, window.closes, window.total, window.older = window.last, NEVER, 0, 0
    window.from = #window.text + 1
    return
  end
  if window.from > #window.text then return end
  while window.from < #window.text do
    local at, cost = unpack(ENTRY, window.text, window.from)
    if now - at < window.period then return end
    window.gone, window.from = at, window.from + 16
    window.total, window.older = window.total - cost, window.older - cost
  end
  window.total, window.older = window.total - window.older, 0
end

local function span_of(window, cost)
  if window.parts == 0 or (window.limit <= window.parts and cost >= 1) then return 0 end
  return window.period / window.parts
end

local function add(window, cost, now, span)
  if now >= window.closes or span == 0 then
    local newest = window.total - window.older
    if newest ~= 0 then
      window.more = window.more .. pack(ENTRY, window.last, newest)
      window.older = window.total
    end
    window.closes = now + span
  end
  window.total, window.last = window.total + cost, now
end

-- The older entries as two lists; `close_up` makes text of them again.
local function open_up(window)
  local text = window.text:sub(window.from) .. window.more
  local times, costs = {}, {}
  for from = 1, #text, 16 do
    times[#times + 1], costs[#costs + 1] = unpack(ENTRY, text, from)
  end
  return times, costs
end

local function close_up(window, times, costs)
  local parts, sum = {}, 0
  for i = 1, #times do
    parts[i], sum = pack(ENTRY, times[i], costs[i]), sum + costs[i]
  end
  window.text, window.from, window.more, window.older = '', 1, table.concat(parts), sum
  window.total = sum + window.newest
end

-- Take up to the cost out of the entry that was admitted at that time; returns what was taken.
local function give_back(window, cost, at)
  if at <= window.gone then return 0 end
  local times, costs = open_up(window)
  window.newest = window.total - window.older
  local left, i = cost, 1
  while i <= #times and times[i] < at do i = i + 1 end
  local is_newest = true
  while left > 0 and i <= #times do
    local part = math.min(left, costs[i])
    costs[i], left = costs[i] - part, left - part
    if costs[i] <= 0 then
      table.remove(times, i)
      table.remove(costs, i)
    else
      i = i + 1
    end
    if (times[i] or window.last) > at then
      is_newest = false
      break
    end
  end
  if is_newest and left > 0 then
    local part = math.min(left, window.newest)
    window.newest, left = window.newest - part, left - part
  end
  if window.newest <= 0 then
    -- The newest entry is empty: the one before it is the newest again.
    window.newest, window.closes = 0, NEVER
    if #times > 0 then
      window.last, window.newest = table.remove(times), table.remove(costs)
    end
  end
  close_up(window, times, costs)
  if window.total == 0 then window.last = NEVER end
  return cost - left
end

-- Charge what passed at an earlier time, of which the engine was not told.
local function debit(window, cost, at, now)
  if now - at >= window.period then return end
  -- Some of it may be given back, and who does tells its time less exactly.
  window.gone = math.min(window.gone, math.max(at - 1000000, now - window.period))
  local span = span_of(window, cost)
  if window.total == 0 or at >= window.last then
    add(window, cost, at, span)
    return
  end
  local times, costs = open_up(window)
  window.newest = window.total - window.older
  local i = 1
  while i <= #times and times[i] < at do i = i + 1 end
  -- The next later entry takes it in if that is near: it is counted a little longer then.
  if (times[i] or window.last) - at <= span then
    if i <= #times then costs[i] = costs[i] + cost else window.newest = window.newest + cost end
  else
    table.insert(times, i, at)
    table.insert(costs, i, cost)
  end
  close_up(window, times, costs)
end

-- What a seed has later than the window was taken over: it began as a copy of that.
local function take_over(window, text)
  local seed = read(window.key, text, window.limit, window.period, window.parts)
  local times, costs = open_up(seed)
  if seed.total > seed.older then
    times[#times + 1], costs[#costs + 1] = seed.last, seed.total - seed.older
  end
  local last, here = window.last, window.total - window.older -- of its last moment
  local own_times, own_costs = open_up(window)
  for i = 1, #own_times do
    if own_times[i] == last then here = here + own_costs[i] end
  end
  for i = 1, #times do
    local known = times[i] < last and costs[i] or times[i] == last and math.min(here, costs[i]) or 0
    if times[i] == last then here = here - known end
    if costs[i] > known then add(window, costs[i] - known, times[i], 0) end
  end
  window.lost = math.max(window.lost, seed.lost)
end

-- A window; where there is none yet, or the call moves it, with what its seeds have.
local function load(key, seeds, moves, limit, period, parts)
  local text, others = get(key), {}
  local is_copy = not text
  if is_copy or moves then
    for _, seed in ipairs(seeds) do
      local other = get(seed)
      if other and text then others[#others + 1] = other end
      text = text or other
    end
  end
  local window = read(key, text, limit, period, parts)
  if is_copy then window.closes = NEVER end -- what comes now can be told from what was there
  for _, other in ipairs(others) do take_over(window, other) end
  return window
end

local function expiry(left, fixed)
  return string.format('%.0f', ceil(math.max(left, 0) / 1000) + (fixed and SLOW or MARGIN))
end

local function save(window, now, raw, fixed)
  local text = pack(HEAD, now - raw, window.born, window.gone, window.closes, window.last,
    window.total, window.older) .. window.text:sub(window.from) .. window.more
  local left = window.total == 0 and window.period or window.last + window.period - now
  redis.call('SET', window.key, text, 'PX', expiry(left, fixed))
  window.text = text
end

-- How many of a cost fit into what is left.
local function fitting(count, cost, room)
  if cost * count <= room then return count end
  local most = math.max(0, floor(room / cost))
  while most > 0 and cost * most > room do most = most - 1 end
  return math.min(most, count)
end

-- The processes that live: each tells so every `interval`, and is taken for gone after three.
local function census(key, op, text, at)
  local interval, since
  interval, since, at = unpack('<dd', text, at)
  local member = text:sub(at)
  local is_new = 0
  if op == BEAT then
    is_new = redis.call('ZADD', key, string.format('%.0f', clock), member)
    redis.call('PEXPIRE', key, expiry(60 * interval))
  else
    redis.call('ZREM', key, member)
  end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', clock - 3 * interval))
  local fresh = redis.call('ZCOUNT', key, string.format('%.0f', since), '+inf')
  return pack('<dddd', redis.call('ZCARD', key), clock, fresh, is_new)
end

-- Forget what is charged. The key stays, or whoever has used it would take it for lost.
local function reset(keys, first, count, has_pacer, raw)
  for i = first, first + count - 1 do
    local text = get(keys[i])
    if text then
      local lost, born, _, _, last = unpack(HEAD, text)
      local empty = pack(HEAD, lost, born, math.max(raw + lost, last), NEVER, NEVER, 0, 0)
      redis.call('SET', keys[i], empty, 'KEEPTTL')
    end
  end
  local key = has_pacer == 1 and keys[first + count]
  local text = key and redis.call('GET', key)
  if text then redis.call('SET', key, text:sub(1, 16) .. pack('<d', 0), 'KEEPTTL') end
  return pack('<dd', 0, raw)
end

local function call(keys, text, first)
  local fixed_now, op, count, has_pacer, sets, at = unpack('<dBBBB', text)
  if op == BEAT or op == LEAVE then return census(keys[first], op, text, at) end
  local raw = fixed_now >= 0 and fixed_now or clock
  if op == RESET then return reset(keys, first, count, has_pacer, raw) end
  local fixed = fixed_now >= 0
  local windows, now = {}, raw
  for i = 1, count do
    local limit, period, parts
    limit, period, parts, at = unpack('<ddI', text, at)
    local seeds = {}
    for set = 1, sets do seeds[set] = keys[first + count * set + has_pacer + i - 1] end
    local window = load(keys[first + i - 1], seeds, op == MOVE, limit, period, parts)
    now = math.max(now, raw + window.lost, window.last)
    windows[i] = window
  end
  local pacer
  if has_pacer == 1 then
    local pace, burst
    pace, burst, at = unpack('<dd', text, at)
    pacer = {key = keys[first + count], pace = pace, burst = burst, lost = 0, at = NEVER, ahead = 0}
    pacer.text = redis.call('GET', pacer.key) or ''
    if pacer.text ~= '' then
      if #pacer.text ~= 24 then stop(pacer.key) end
      pacer.lost, pacer.at, pacer.ahead = unpack('<ddd', pacer.text)
      check(pacer.key, pacer.lost, pacer.at, pacer.ahead, 0)
    end
    now = math.max(now, raw + pacer.lost, pacer.at)
    pacer.drained = pacer.ahead > 0 and math.max(0, pacer.ahead - (now - pacer.at) * pace) or 0
  end
  for _, window in ipairs(windows) do
    drop(window, now)
    if window.total ~= window.total or window.older ~= window.older then stop(window.key) end
  end

  local granted, changed, charged = 0, false, 0
  if op == TAKE then
    local runs
    runs, at = unpack('<H', text, at)
    for _ = 1, runs do
      local cost, wanted
      cost, wanted, at = unpack('<dI', text, at)
      local fit = wanted
      for _, window in ipairs(windows) do
        fit = fitting(fit, cost, window.limit - window.total)
      end
      if pacer then -- a microsecond early is in time: who has slept the wait is let in
        local room = pacer.burst - math.max(0, pacer.drained + charged - pacer.pace)
        fit = fitting(fit, cost, math.min(room, pacer.burst))
      end
      if fit > 0 then
        for _, window in ipairs(windows) do
          add(window, cost * fit, now, span_of(window, cost))
        end
        granted, charged, changed = granted + fit, charged + cost * fit, true
      end
      if fit < wanted then break end
    end
  elseif op == CHARGE then
    charged, at = unpack('<d', text, at)
    for _, window in ipairs(windows) do
      add(window, charged, now, span_of(window, charged))
    end
    changed = true
  elseif op == MOVE then
    changed = true
  elseif op == GIVE_BACK then
    local cost, since, fastest, born
    cost, since, fastest, born, at = unpack('<dddd', text, at)
    for _, window in ipairs(windows) do
      if window.born <= born then granted = math.max(granted, give_back(window, cost, since)) end
    end
    if pacer then
      charged = -math.max(0, granted - (now - since) * math.max(pacer.pace, fastest))
    end
    changed = granted > 0
  elseif op == DEBIT then
    -- What the engine had granted itself is told as well, and counts if that has been lost since.
    local since, known, number = nil, {}, 0
    since, number, at = unpack('<dH', text, at)
    for _ = 1, 2 do
      local list = {}
      for i = 1, number do
        local age, cost
        age, cost, at = unpack('<dd', text, at)
        list[i] = {now - age, cost}
      end
      known[#known + 1] = list
      if #known == 1 then number, at = unpack('<H', text, at) end
    end
    for _, window in ipairs(windows) do
      local is_lost = since >= 0 and window.born > since and now - since < window.period
      for _, one in ipairs(known[is_lost and 1 or 2]) do debit(window, one[2], one[1], now) end
      if is_lost then granted = 1 end
    end
    if pacer then
      for _, one in ipairs(known[2]) do
        charged = charged + math.max(0, one[2] - (now - one[1]) * pacer.pace)
      end
    end
    changed = true
  end

  local answer = {pack('<dd', granted, now)}
  for _, window in ipairs(windows) do
    if changed then save(window, now, raw, fixed) end
    answer[#answer + 1] = pack('<I', #window.text) .. window.text
  end
  if pacer then
    if changed then
      pacer.ahead = math.max(0, pacer.drained + charged)
      pacer.text = pack('<ddd', now - raw, now, pacer.ahead)
      local left = pacer.pace > 0 and pacer.ahead / pacer.pace or 0
      for _, window in ipairs(windows) do left = math.max(left, window.period) end
      redis.call('SET', pacer.key, pacer.text, 'PX', expiry(math.min(left, 1e15), fixed))
    end
    answer[#answer + 1] = pack('<I', #pacer.text) .. pacer.text
  end
  return table.concat(answer)
end

local answers, first, at = {}, 1, 1
while at <= #ARGV[1] do
  local length
  length, at = unpack('<I', ARGV[1], at)
  local text = ARGV[1]:sub(at, at + length - 1)
  at = at + length
  local is_done, answer = pcall(call, KEYS, text, first)
  if not is_done then
    if type(answer) == 'table' then answer = answer.err or answer[1] end
    answer = pack('<dd', -1, 0) .. tostring(answer)
  end
  answers[#answers + 1] = pack('<I', #answer) .. answer
  local _, _, count, has_pacer, sets = unpack('<dBBBB', text)
  first = first + count + has_pacer + count * sets
end
return table.concat(answers)
